"""Texts with characters that a database may refuse: each field stores them, or is refused by its name."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.harness.workflows import CONTINUE, Workflows, complete, done, release, seen, wait_for
from timer_service.core.values.message import Payload
from timer_service.workflows.messages import CancelWorkflow, RetryWorkflow, SendToWorkflow, StartWorkflow
from timer_service.workflows.protocol import PollTasks, RenewTasks, ReportTasks

NUL = "a\x00b"
DATA = {NUL: [NUL]}
ERROR = {"type": "ValueError", "message": NUL}


async def test_data_with_nul_is_stored(workflows: Workflows) -> None:
    """Input, results, messages and the texts of errors may have the character U+0000, in keys too."""
    await workflows.send_to(data=DATA)
    task = await workflows.begin(input=DATA)
    failing = {"key": "ship", "attempt": 1, "error": ERROR, "retryable": False}
    reported = await workflows.report(task, steps=[done("pay", DATA), failing], waits=[wait_for("approval")])
    assert [each["result"] for each in reported["over"]] == [DATA]
    ended = await workflows.report(task, {"action": "fail", "error": ERROR}, seen=seen("pay", "ship", "approval"))
    assert ended["outcome"] == "failed"
    view = await workflows.view()
    assert (view["input"], view["failure"]) == (DATA, ERROR)
    effects = {each["key"]: each for each in view["effects"]}
    assert (effects["pay"]["result"], effects["approval"]["result"]) == (DATA, DATA)
    assert effects["ship"]["error"] == ERROR
    (event,) = await workflows.events_of("WorkflowFailed")
    assert event["payload"]["error"] == ERROR
    assert await workflows.about("Retry") == "retried"
    task = await workflows.take()
    assert task["input"] == DATA
    await workflows.report(task, complete(DATA))
    (event,) = await workflows.events_of("WorkflowCompleted")
    assert event["payload"]["result"] == DATA


HELD = {"workflowId": "order-1", "token": "0" * 16}
REPORT = {**HELD, "number": 1, "then": CONTINUE}
WORKER = {"workerId": "worker-1"}
NAMED = {"tenantId": "acme", "workflowId": "order-1"}
REFUSED: dict[str, tuple[type[Payload], dict[str, Any]]] = {
    "workflowId": (RetryWorkflow, {**NAMED, "workflowId": NUL}),
    "type": (StartWorkflow, {**NAMED, "type": NUL}),
    "messageId": (SendToWorkflow, {**NAMED, "name": "approval", "messageId": NUL}),
    "reason": (CancelWorkflow, {**NAMED, "reason": NUL}),
    "reports.0.steps.0.key": (ReportTasks, {**WORKER, "reports": [{**REPORT, "steps": [{"key": NUL, "attempt": 1}]}]}),
    "reports.0.then.release.error": (
        ReportTasks,
        {**WORKER, "reports": [{**REPORT, "then": release("shutdown", NUL)}]},
    ),
    "workerId": (RenewTasks, {"workerId": NUL, "tasks": [HELD]}),
    "name": (PollTasks, {**WORKER, "name": NUL, "types": ["order"], "slots": 1}),
}


def test_names_with_nul() -> None:
    """U+0000 in a name, an id or a reason is refused with the name of the field: PostgreSQL cannot store it."""
    for field, (model, fields) in REFUSED.items():
        with pytest.raises(ValidationError) as raised:
            model.model_validate(fields, by_alias=True, by_name=False)
        assert [".".join(map(str, each["loc"])) for each in raised.value.errors()] == [field]
