"""Attacks with workflows and their messages, and with cancels by prefix."""

from collections.abc import Mapping
from typing import Any

from tests.harness.attacks.attack import LONG_AFTER, LONG_AGO, Attack, address, body, commands, queries
from tests.harness.attacks.commands import LARGE
from tests.harness.raw_nats import RawMessage


def _start(workflow: str = "order-NUMBER", **fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "StartWorkflow", {"workflowId": workflow, "type": "order", **fields}


def _send(workflow: str = "order", **fields: Any) -> tuple[str, Mapping[str, Any]]:
    return "SendToWorkflow", {"workflowId": workflow, "name": "go", **fields}


def _timer(call: str) -> tuple[str, Mapping[str, Any]]:
    return "ScheduleTimer", {"serviceCallId": call, "dueAt": LONG_AFTER}


def _prepared(*made: tuple[str, Mapping[str, Any]]) -> list[RawMessage]:
    return [RawMessage(address(kind), body(kind, payload)) for kind, payload in made]


WORKFLOWS: Mapping[str, Attack] = {
    "workflows": commands(_start()),
    "workflows with large inputs": commands(_start(input=LARGE), size=20),
    "workflows of many queues": commands(_start(type="type-NUMBER", queue="queue-NUMBER")),
    "workflows of one key": commands(_start(concurrencyKey="key")),
    "workflows after their deadline": commands(_start(deadlineAt=LONG_AGO)),
    "workflows and their cancels": commands(
        _start(),
        ("CancelWorkflow", {"workflowId": "order-NUMBER"}),
        ("RetryWorkflow", {"workflowId": "order-NUMBER"}),
    ),
    "messages to one workflow": commands(_send(messageId="NUMBER"), prepare=_prepared(_start("order"))),
    "large messages to one workflow": commands(_send(data=LARGE), size=20, prepare=_prepared(_start("order"))),
    "messages to unknown workflows": commands(_send("order-NUMBER", data=LARGE), size=20),
    "cancels by prefix": commands(("CancelTimers", {"prefix": "call-"}), _timer("call-NUMBER")),
    "cancels by prefixes of many lengths": commands(
        *(("CancelTimers", {"prefix": "call-" + "x" * length}) for length in range(150)),
        _timer("call-" + "x" * 150 + "NUMBER"),
    ),
}
WORKFLOW_QUERIES: Mapping[str, Attack] = {
    "lists of workflows with large inputs": queries(
        ("list-workflows", {"limit": 1000}),
        ("count-workflows", {}),
        ("get-workflow", {"workflowId": "order-1"}),
        prepare=_prepared(*(_start(f"order-{number}", input=LARGE) for number in range(100))),
    ),
}
