"""Signals over the real broker, with kills, several instances and a WebSocket subscriber."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.e2e.conftest import ON_SQLITE, WITH_KILLS, User, kill_and_start
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service, body, unused_port
from tests.harness.websocket import WebSocketSubscriber
from timer_service.core.values.message import kebab

SCHEMA = Path(__file__).parents[2] / "contracts" / "schemas" / "work-signal-fired.v1.json"
FIRED = "timer.evt.v1.*.work-signal-fired"
FIRINGS_FIRED = 'timer_schedules_processed_total{outcome="fired",table="work_signal_firings"}'
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


@pytest.mark.slow
@WITH_KILLS
async def test_signal_fires_once_when_killed_after_each_step(user: User, service: Service, handled: bool) -> None:  # noqa: FBT001
    """The service fires the signal once even if it is killed after each of the three commands."""
    for step in steps():
        await user.js.publish(*step)
        if handled:
            await user.until_handled()
        await kill_and_start(service)
    await user.until_stored("TIMER_EVT", 1)
    await user.until_handled()
    events = await fired(user)
    assert {event["payload"]["signalId"] for event in events} == {"signal-1"}
    assert len({event["id"] for event in events}) == 1
    check_schema(events[0])
    assert len((await ask(user, "list-tasks", workItemId="item-1"))["tasks"]) == 1
    assert (await ask(user, "get-signal", signalId="signal-1"))["status"] == "fired"


@ON_SQLITE
async def test_killed_service_fires_every_signal_once(user: User, service: Service) -> None:
    """A service that is killed while signals fire creates one task per signal, and duplicates have the same id."""
    count, rng = 300, random.Random(5)
    sending = asyncio.create_task(user.send(step for number in range(count) for step in steps(number)))
    for _ in range(3):
        await asyncio.sleep(rng.uniform(0, 0.4))
        await kill_and_start(service)
    await sending
    await user.until_handled()
    await user.until_stored("TIMER_EVT", count)
    events = await fired(user)
    assert {event["payload"]["signalId"] for event in events} == {f"signal-{number}" for number in range(count)}
    assert len({event["id"] for event in events}) == count
    assert len((await ask(user, "list-signals", status="fired", limit=1000))["signals"]) == count
    print(f"{count} signals, 3 kills: all fired, {len(events) - count} duplicates")


async def block(user: User, count: int) -> None:
    """Send one command for each work item, a hundred commands per second."""
    start = time.time()
    for number in range(count):
        await asyncio.sleep(start + number / 100 - time.time())
        await user.js.publish(*steps(number)[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [pytest.param(400, id="short"), pytest.param(6_000, id="full", marks=pytest.mark.full)]
)
async def test_all_signals_fire_when_one_of_three_instances_is_killed(count: int, user: User, fleet: Fleet) -> None:
    """If one of three instances is killed at 100 transitions per second, each signal fires once with one task."""
    async with fleet.running(3, TIMER_VISIBILITY_TIMEOUT="10000", TIMER_POLLING_INTERVAL="200") as (victim, *others):
        await user.send(step for number in range(count) for step in steps(number)[:-1])
        await user.until_handled()
        blocking = asyncio.create_task(block(user, count))
        await user.until_stored("TIMER_EVT", count // 4)
        await victim.kill()
        await user.until_stored("TIMER_EVT", count // 2)
        await victim.start()
        await blocking
        await user.until_stored("TIMER_EVT", count)
        await user.until_handled()
        events = await fired(user)
        done = [await each.metric(FIRINGS_FIRED) for each in others]
        answer = await ask(user, "list-signals", status="fired", limit=1000)
    assert {event["payload"]["signalId"] for event in events} == {f"signal-{number}" for number in range(count)}
    assert len({event["id"] for event in events}) == len({event["payload"]["taskId"] for event in events}) == count
    assert len(answer["signals"]) == min(count, 1000)
    assert any(done), "only the killed instance fired"
    print(f"{count} signals, 3 instances, 1 killed: all fired, {len(events) - count} duplicates, by the others: {done}")


async def test_disabled_signals_fire_after_they_are_enabled(tmp_path: Path, user: User, broker: NatsServer) -> None:
    """A service with TIMER_SIGNALS_ENABLED=false handles commands but fires nothing. When enabled, it fires them."""
    async with Service(tmp_path / "service", broker.url, TIMER_SIGNALS_ENABLED="false"):
        for step in steps():
            await user.js.publish(*step)
        await user.until_handled()
        assert (await ask(user, "get-signal", signalId="signal-1"))["status"] == "active"
        assert await user.stored("TIMER_EVT") == 0
    async with Service(tmp_path / "service", broker.url):
        await user.until_stored("TIMER_EVT", 1)
        (event,) = await fired(user)
    check_schema(event)
