"""Signals over the real broker, with kills, several instances and a WebSocket subscriber."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.e2e.conftest import User
from tests.harness.processes import NatsServer, Service, body, unused_port
from tests.harness.websocket import WebSocketSubscriber
from timer_service.core.values.message import kebab

SCHEMA = Path(__file__).parents[2] / "contracts" / "schemas" / "work-signal-fired.v1.json"
FIRED = "timer.evt.v1.*.work-signal-fired"
BLOCKED = {"kind": "work_item.status.transition", "to": ["blocked"]}


def steps(number: int = 1) -> list[tuple[str, bytes]]:
    """Return three commands: create a work item, create a signal for it, change the item to `blocked`."""
    item, signal = {"workItemId": f"item-{number}"}, {"signalId": f"signal-{number}"}
    commands: dict[str, dict[str, Any]] = {
        "CreateWorkItem": {**item, "status": "doing"},
        "CreateWorkSignal": {**signal, **item, "triggerKind": "event", "triggerSpec": BLOCKED},
        "TransitionWorkItem": {**item, "from": "doing", "to": "blocked"},
    }
    return [
        (f"timer.cmd.v1.acme.{kebab(name)}", body(name, "acme", {"tenantId": "acme", **payload}))
        for name, payload in commands.items()
    ]


def check_schema(event: Any) -> None:
    Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(event)


async def fired(user: User) -> list[Any]:
    """Return every work.signal.fired in the stream."""
    return [json.loads(message.data) for message in await user.read("TIMER_EVT", FIRED)]


async def ask(user: User, name: str, **question: Any) -> Any:
    answer = await user.connection.request(f"timer.qry.v1.acme.{name}", json.dumps(question).encode(), timeout=10)
    return json.loads(answer.data)


@pytest.fixture
def websocket_port() -> int:
    return unused_port()


@pytest.fixture
async def broker(tmp_path: Path, websocket_port: int) -> AsyncIterator[NatsServer]:
    listener = f'websocket {{ listen: "127.0.0.1:{websocket_port}", no_tls: true }}'
    async with NatsServer(tmp_path / "nats", listener) as server:
        yield server


async def test_websocket_subscriber_receives_one_event(user: User, service: Service, websocket_port: int) -> None:
    """A subscriber on the WebSocket listener of the broker receives exactly one event for the three commands."""
    async with asyncio.timeout(20), WebSocketSubscriber.connect(websocket_port) as operator:
        await operator.subscribe("timer.evt.v1.acme.work-signal-fired")
        for step in steps():
            await user.js.publish(*step)
        event = await operator.next()
        await user.until_handled()
        check_schema(event)
        (firing,) = (await ask(user, "list-firings", signalId="signal-1"))["firings"]
        (task,) = (await ask(user, "list-tasks", workItemId="item-1"))["tasks"]
        assert event["payload"]["firingId"] == firing["firingId"] == task["firingId"]
        assert event["payload"]["taskId"] == task["taskId"]
        assert (await fired(user), await operator.drain()) == ([event], [])
