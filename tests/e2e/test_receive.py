"""`TimerApp` with the real service: handlers that fail, take long, hang or block, and events that are parked."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_EACH_BROKER, ON_SQLITE, User
from tests.harness.cli import Cli
from tests.harness.processes import NatsServer, Service
from tests.harness.receiving import EventPublisher, event_publisher
from tests.harness.waiting import until
from timer_service import watchdog
from timer_service.client import DueTimeReached, Event, ParkedEvent, TimerApp, TimerClient
from timer_service.client.receive import attempt as attempts_module
from timer_service.client.receive import delivery as delivery_module
from timer_service.client.redis import groups
from timer_service.core.values.address import Address, Kind

SECOND = timedelta(seconds=1)
NOW = timedelta()


@pytest.fixture
async def service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[Service]:
    """A service at which the tenant `limited` can park one event."""
    limits = tmp_path / "limits.toml"
    limits.write_text("[tenants.limited]\nparked_events = 1\n", "utf-8")
    async with Service(tmp_path / "service", broker.url, TIMER_LIMITS_FILE=str(limits), **stored) as running:
        yield running


@pytest.fixture
async def client(broker: NatsServer, service: Service) -> AsyncIterator[TimerClient]:
    async with TimerClient.connect(broker.url) as connected:
        yield connected


@pytest.fixture
async def events(service: Service, broker: NatsServer) -> AsyncIterator[EventPublisher]:
    async with event_publisher(broker, is_stream_there=True) as found:
        yield found


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make failed events come again soon."""
    monkeypatch.setattr(delivery_module, "FIRST_DELAY", timedelta(milliseconds=20))
    monkeypatch.setattr(attempts_module, "LONGEST_DELAY", timedelta(milliseconds=50))
    monkeypatch.setattr(groups, "LOOK_SECONDS", 0.02)


class Handler:
    """A handler that fails until it is corrected. Notes the time of each try, and what it has handled."""

    def __init__(self, *, failures: int = 1_000_000) -> None:
        self.failures = failures
        self.tried: list[float] = []
        self.handled: list[str] = []

    async def __call__(self, event: Event) -> None:
        self.tried.append(time.monotonic())
        if self.failures:
            self.failures -= 1
            raise RuntimeError(f"attempt {len(self.tried)}")
        self.handled.append(event.raw["payload"]["serviceCallId"])


def app_with(
    broker: NatsServer, handler: Any, *, tenant: str = "acme", name: str = "orders", **options: Any
) -> TimerApp:
    app = TimerApp(broker.url, tenant=tenant, name=name, **options)
    app.on_due()(handler)
    return app


def payload(parked: ParkedEvent) -> Mapping[str, Any]:
    """Return the payload of a parked event that was read whole."""
    assert parked.event is not None
    found: Mapping[str, Any] = parked.event["payload"]
    return found


async def until_parked(client: TimerClient, number: int = 1, tenant: str = "acme") -> list[ParkedEvent]:
    """Wait until a tenant has so many parked events, and return them with their events."""
    async with asyncio.timeout(30):
        while len(found := [each async for each in client.events.parked(tenant)]) != number:
            await asyncio.sleep(0.02)
    whole = [await client.events.get_parked(tenant, each.consumer, each.event_id) for each in found]
    return [each for each in whole if each is not None]


@ON_EACH_BROKER
@ON_SQLITE
async def test_failures_are_tried_again(
    broker: NatsServer,
    client: TimerClient,
    events: EventPublisher,
    short_delays: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A handler that fails three times is called a fourth time. The delays grow, and nothing is parked."""
    handler = Handler(failures=3)
    async with app_with(broker, handler, attempts=4).running():
        await client.timers.schedule("acme", "a", due_in=NOW)
        await until(lambda: handler.handled == ["a"])
        await events.until_acknowledged()
    first, second, third = (after - before for before, after in pairwise(handler.tried))
    assert first >= 0.016
    assert second >= 0.032
    assert third >= 0.064
    assert "failed, attempt 3 of 4" in caplog.text
    assert await until_parked(client, 0) == []


@ON_EACH_BROKER
@ON_SQLITE
async def test_a_handler_that_always_fails(
    broker: NatsServer, client: TimerClient, cli: Cli, events: EventPublisher, short_delays: None
) -> None:
    """Its events are parked with the last error, and listed. One that is sent again reaches this consumer only, once.

    Also if the consumer does not run meanwhile. One that is dropped does not come again.
    """
    handler, others = Handler(), list[str]()
    other = TimerApp(broker.url, tenant="acme", name="audit")

    @other.on(Event)
    async def note(event: Event) -> None:
        others.append(event.raw["payload"]["serviceCallId"])

    async with other.running():
        async with app_with(broker, handler, attempts=4).running():
            for name in ("by-client", "by-cli", "dropped"):
                await client.timers.schedule("acme", name, due_in=NOW, data={"total": 7})
            parked = {each.about["serviceCallId"]: each for each in await until_parked(client, 3)}
            await events.until_acknowledged()
        assert len(handler.tried) == 12
        for name, each in parked.items():
            assert (each.consumer, each.attempts, payload(each)["data"]) == ("orders", 4, {"total": 7}), name
        assert "RuntimeError: attempt 12" in {each.reason for each in parked.values()}
        _, *rows = await cli.lines("events", "parked", "acme")
        assert {row.split()[1] for row in rows} == {each.event_id for each in parked.values()}
        handler.failures = 0
        done = await client.events.resubmit("acme", "orders", parked["by-client"].event_id)
        assert done.name == "resubmitted"
        await cli.lines("events", "resubmit", "acme", "orders", parked["by-cli"].event_id)
        assert (await client.events.drop("acme", "orders", parked["dropped"].event_id)).name == "dropped"
        async with app_with(broker, handler, attempts=4).running():
            await until(lambda: len(handler.handled) >= 2)
            await events.until_acknowledged()
        await events.until_acknowledged("acme~audit")
    assert sorted(handler.handled) == ["by-cli", "by-client"]
    assert sorted(others) == ["by-cli", "by-client", "dropped"]
    assert await until_parked(client, 0) == []


@ON_EACH_BROKER
@ON_SQLITE
async def test_what_cannot_be_read_is_parked_at_once(
    broker: NatsServer, client: TimerClient, events: EventPublisher
) -> None:
    """The event as it is; its text if it is another tenant's, or no JSON object with an id, a type and a payload."""
    handler = Handler(failures=0)
    foreign = {"id": "a\n", "type": "", "tenantId": "other", "payload": {"x": 1}}
    async with app_with(broker, handler).running():
        address = Address(Kind.EVENT, "acme", "due-time-reached")
        await events.store(address, b"\xff garbage")
        await events.store(address, json.dumps(foreign).encode())
        await events.publish("DueTimeReached", serviceCallId=7, name="b")
        await events.fire("c")
        await until(lambda: handler.handled == ["c"])
        parked = {each.reason: each for each in await until_parked(client, 3)}
        await events.until_acknowledged()
    wrong = parked.pop("this is no event: serviceCallId is missing or wrong")
    assert (wrong.event_id, payload(wrong)["serviceCallId"]) == ("event-b", 7)
    texts = {payload(each)["text"]: each for each in parked.values()}
    assert texts.keys() == {"\ufffd garbage", json.dumps(foreign)}
    assert {each.type for each in texts.values()} == {"unreadable"}


@ON_EACH_BROKER
@ON_SQLITE
async def test_a_large_event_is_parked_without_its_payload(
    broker: NatsServer, client: TimerClient, events: EventPublisher
) -> None:
    """An event that does not fit into a command is parked with its id, its type and its size."""
    async with app_with(broker, Handler(), attempts=1).running():
        await events.fire("a", "x" * (1024 * 1024 - 500))
        (parked,) = await until_parked(client)
        await events.until_acknowledged()
    assert (parked.event_id, list(payload(parked))) == ("event-a", ["omitted"])


@ON_EACH_BROKER
@ON_SQLITE
async def test_parking_waits_for_room(
    broker: NatsServer,
    client: TimerClient,
    events: EventPublisher,
    short_delays: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the tenant is at its limit, an event is not acknowledged. It is tried again until it can be parked."""
    handler = Handler()
    async with app_with(broker, handler, tenant="limited", attempts=1).running():
        for name in "ab":
            await client.timers.schedule("limited", name, due_in=NOW)
        await until(lambda: len(handler.tried) >= 6)
        (first,) = await until_parked(client, tenant="limited")
        await events.until_left(1, "limited~orders")
        await client.events.drop("limited", "orders", first.event_id)
        await events.until_acknowledged("limited~orders")
    (second,) = await until_parked(client, tenant="limited")
    assert first.event_id != second.event_id
    assert "cannot be parked (over_quota); it is tried again later" in caplog.text


@pytest.mark.slow
@ON_EACH_BROKER
@ON_SQLITE
async def test_parking_waits_for_the_service(
    broker: NatsServer, service: Service, client: TimerClient, events: EventPublisher, short_delays: None
) -> None:
    """While the service is away, an event that cannot be parked is not acknowledged. Then it is parked once."""
    handler = Handler()
    async with app_with(broker, handler, attempts=1).running():
        await service.kill()
        await events.fire("a")
        await until(lambda: len(handler.tried) >= 2)  # once more, after the service did not answer
        await events.until_left(1)
        await service.start()
        await until_parked(client)
        await events.until_acknowledged()


@ON_SQLITE
async def test_an_event_without_a_handler_waits_for_a_newer_version(
    broker: NatsServer, client: TimerClient, events: EventPublisher, user: User, short_delays: None
) -> None:
    """A program that has no handler for an event of its consumer gives it back, and at last parks it."""
    handler = Handler(failures=0)
    async with app_with(broker, handler, attempts=3).running():
        info = await user.js.consumer_info("TIMER_EVT", "acme~orders")
        info.config.filter_subjects = [*(info.config.filter_subjects or []), "timer.evt.v1.acme.run-completed"]
        await user.js.add_consumer("TIMER_EVT", info.config)
        await events.publish("RunCompleted", runId="r", name="r")
        (parked,) = await until_parked(client)
    assert (parked.reason, parked.attempts) == ("this program has no handler for RunCompleted", 3)
    assert handler.tried == []


@pytest.mark.parametrize(
    ("ack_wait", "seconds"),
    [
        pytest.param(1, 3, marks=[pytest.mark.slow]),
        pytest.param(30, 120, marks=[pytest.mark.full, pytest.mark.timeout(300)]),
    ],
)
@ON_SQLITE
async def test_handlers_that_take_long(
    broker: NatsServer, client: TimerClient, events: EventPublisher, user: User, *, ack_wait: int, seconds: int
) -> None:
    """A handler, in a thread or not, may take longer than `ack_wait`, and so may the events behind it.

    Nothing is delivered again, neither to this process nor to another one of the consumer.
    """
    handled: list[str] = []
    ends = time.monotonic() + seconds
    one, two = (
        TimerApp(broker.url, tenant="acme", name="orders", concurrency=1, ack_wait=ack_wait * SECOND) for _ in range(2)
    )

    @one.on_due()
    async def handle(event: DueTimeReached) -> None:
        while time.monotonic() < ends:
            await asyncio.sleep(0.1)
        handled.append(event.timer_id)

    @two.on_due()
    def handle_in_a_thread(event: DueTimeReached) -> None:
        time.sleep(max(0.0, ends - time.monotonic()))
        handled.append(event.timer_id)

    async with one.running(), two.running():
        for name in "abcd":
            await client.timers.schedule("acme", name, due_in=NOW)
        await until(lambda: len(handled) == 4, seconds=seconds + 30)
        await events.until_acknowledged()
        info = await user.js.consumer_info("TIMER_EVT", "acme~orders")
    assert info.delivered is not None
    assert (sorted(handled), info.delivered.consumer_seq) == (["a", "b", "c", "d"], 4)


@pytest.mark.slow
@ON_EACH_BROKER
@ON_SQLITE
async def test_a_handler_that_hangs(
    broker: NatsServer,
    client: TimerClient,
    events: EventPublisher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names its event, again and again. Others are handled beside it. After a stop, its event comes again."""
    monkeypatch.setattr(attempts_module, "LONG_SECONDS", 0.05)
    handled: list[str] = []

    async def hang(event: DueTimeReached) -> None:
        if event.timer_id == "hangs":
            await asyncio.sleep(3600)
        handled.append(event.timer_id)

    app = app_with(broker, hang, concurrency=2, ack_wait=SECOND, shutdown_timeout=timedelta())
    async with app.running():
        await client.timers.schedule("acme", "hangs", due_in=NOW)
        await until(lambda: caplog.text.count("of timer hangs has run for") >= 3)
        await client.timers.schedule("acme", "other", due_in=NOW)
        await until(lambda: handled == ["other"])
        async with asyncio.timeout(30):
            while await events.unacknowledged() != (1, 0):
                await asyncio.sleep(0.02)
    corrected = Handler(failures=0)
    async with app_with(broker, corrected, ack_wait=SECOND).running():
        await until(lambda: corrected.handled == ["hangs"])
        await events.until_acknowledged()


@pytest.mark.slow
@ON_SQLITE
async def test_a_handler_that_blocks_the_loop(
    broker: NatsServer,
    client: TimerClient,
    events: EventPublisher,
    user: User,
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log shows the handler. Its event, which was not renewed, comes again, but not to the handler."""
    monkeypatch.setattr(watchdog, "SLOW_SECONDS", 0.3)
    handled: list[str] = []

    async def block(event: DueTimeReached) -> None:
        time.sleep(3)  # noqa: ASYNC251 - this is the mistake
        handled.append(event.timer_id)

    async with app_with(broker, block, ack_wait=SECOND).running():
        with caplog.at_level(logging.WARNING):
            await client.timers.schedule("acme", "a", due_in=NOW)
            await until(lambda: handled == ["a"])
        await events.until_acknowledged()
        info = await user.js.consumer_info("TIMER_EVT", "acme~orders")
    assert "without an await; all handlers of this app wait" in caplog.text
    assert ", in block\n" in caplog.text
    assert info.delivered is not None
    assert info.delivered.consumer_seq > 1
    assert handled == ["a"]
