"""A signal over the real broker, with a subscriber on its WebSocket listener."""

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
SIGNAL: dict[str, Any] = {"signalId": "s", "workItemId": "i", "triggerKind": "event"}
SIGNAL |= {"triggerSpec": {"kind": "work_item.status.transition", "to": ["blocked"]}}
COMMANDS = {
    "CreateWorkItem": {"workItemId": "i", "status": "doing"},
    "CreateWorkSignal": SIGNAL,
    "TransitionWorkItem": {"workItemId": "i", "from": "doing", "to": "blocked"},
}


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

    async def ask(name: str, **question: Any) -> Any:
        answer = await user.connection.request(f"timer.qry.v1.acme.{name}", json.dumps(question).encode(), timeout=10)
        return json.loads(answer.data)

    async with asyncio.timeout(20), WebSocketSubscriber.connect(websocket_port) as operator:
        await operator.subscribe("timer.evt.v1.acme.work-signal-fired")
        for name, payload in COMMANDS.items():
            await user.js.publish(f"timer.cmd.v1.acme.{kebab(name)}", body(name, "acme", payload))
        event = await operator.next()
        await user.until_handled()
        Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(event)
        (firing,) = (await ask("list-firings", signalId="s"))["firings"]
        (task,) = (await ask("list-tasks", workItemId="i"))["tasks"]
        assert event["payload"]["firingId"] == firing["firingId"] == task["firingId"]
        assert event["payload"]["taskId"] == task["taskId"]
        stored = await user.read("TIMER_EVT", "timer.evt.v1.*.work-signal-fired")
        assert ([json.loads(each.data) for each in stored], await operator.drain()) == ([event], [])
