"""A tenant that sends strange replies, takes connections or fills a stream, while another tenant uses the service."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from tests.harness.fence import (
    LONG_AFTER,
    LONG_AGO,
    PASSWORDS,
    PATIENCE_SECONDS,
    SERVICE_LOGIN,
    Operator,
    Peer,
    command,
    connect,
)
from tests.harness.processes import NatsServer, Service, body
from tests.harness.raw_nats import RawMessage, RawNats, header_block

LONGEST_SECONDS = 1.0
"""The longest time that tenant B waits, in the median."""
LONGEST_IN_SHORT_SUITE_SECONDS = 5.0
"""The longest time that tenant B ever waits. The short suite runs three tests at a time on two cores."""
SCHEDULE = b"timer.cmd.v1.tenant-a.schedule-timer"
PULL = b'{"batch": 1, "no_wait": true}'
DEAD_LETTERS = 'timer_dead_letters_total{code="INVALID_JSON"}'
HANDLED = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
LOGIN = {"user": "tenant-a", "pass": PASSWORDS["TENANT_A_PASSWORD"]}


@asynccontextmanager
async def attackers(broker: NatsServer, number: int) -> AsyncIterator[list[RawNats]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(RawNats.connect(broker.port, **LOGIN)) for _ in range(number)]


async def measure(b: Peer, attack: asyncio.Future[Any]) -> None:
    """Use the service as tenant B until the attack ends, and at least 5 times. Fail if B waits for long."""
    waits: list[float] = []
    while len(waits) < 10 or not attack.done():
        used = len(waits) // 2 + 1
        started = time.monotonic()
        assert (await b.schedule("tenant-b", f"call-{used}", LONG_AFTER))["outcome"] == "scheduled"
        handled = time.monotonic()
        assert (await b.request("timer.qry.v1.tenant-b.count-timers"))["counts"]["Scheduled"] == used
        waits += [handled - started, time.monotonic() - handled]
    await attack
    assert median(waits) <= LONGEST_SECONDS
    assert max(waits) <= LONGEST_IN_SHORT_SUITE_SECONDS


async def test_reply_subjects_do_not_change_the_health(broker: NatsServer, b: Peer, service: Service) -> None:
    """Commands and queries with strange reply subjects neither stop replies to others nor make the service unready."""
    wanted = ("_INBOX.tenant-a..", "_INBOX.", "_INBOX.tenant-a.>", "_INBOX.tenant-a." + "x" * 3_000, "_INBOX.\xff", ">")
    headers = [header_block(b"Timer-Reply-To: " + each.encode("latin-1")) for each in wanted]
    body = command("tenant-a", "call-1", LONG_AFTER)
    messages = [RawMessage(SCHEDULE, body, each) for each in headers]
    messages += [RawMessage(b"timer.qry.v1.tenant-a.get-run", b"{}", reply=each.encode("latin-1")) for each in wanted]
    async with attackers(broker, 1) as (raw,):
        await measure(b, asyncio.ensure_future(raw.publish(messages * 50)))
    assert (await service.page("/readyz"))[0] == 200
    assert "violation" not in service.log.read_text().lower()


async def test_tenant_cannot_take_all_connections(broker: NatsServer, service: Service) -> None:
    """A tenant has at most 20 connections and 30 subscriptions on each. Others connect as before."""
    async with attackers(broker, 20) as taken:
        await asyncio.gather(*(each.publish([]) for each in taken))
        async with attackers(broker, 1) as (one_more,):
            with pytest.raises(AssertionError, match="maximum account active connections exceeded"):
                await one_more.publish([])
        await taken[0].subscribe(30)
        await taken[0].publish([])
        await taken[0].subscribe(1)
        with pytest.raises(AssertionError, match="maximum subscriptions exceeded"):
            await taken[0].publish([])
        other = await connect(broker, "tenant-b")
        assert (await other.schedule("tenant-b", "another", LONG_AFTER))["outcome"] == "scheduled"
        await other.connection.close()
    assert (await service.page("/readyz"))[0] == 200


async def test_empty_command_delays_no_later_command(broker: NatsServer, b: Peer, service: Service) -> None:
    """A command without headers and body delays no command that is published while the same pull waits."""
    waits = []
    async with attackers(broker, 1) as (raw,):
        for number in range(10):
            await raw.publish([RawMessage(SCHEDULE)])
            await asyncio.sleep(number * 0.005)  # before, while and after the service notices the empty command
            started = time.monotonic()
            await b.schedule("tenant-b", f"call-{number}", LONG_AFTER)
            waits.append(time.monotonic() - started)
    assert median(waits) <= LONGEST_SECONDS / 2
    assert max(waits) <= LONGEST_IN_SHORT_SUITE_SECONDS


async def limit(operator: Operator, stream: str, max_bytes: int) -> None:
    """Set `max_bytes` of a stream, as docs/security.md says."""
    js = operator.connection.jetstream()
    await js.update_stream((await js.stream_info(stream)).config.evolve(max_bytes=max_bytes))


def rejects(count: int) -> Iterable[RawMessage]:
    """Yield invalid commands: large ones, and then small ones for the rest of the room."""
    yield from (RawMessage(SCHEDULE, b"no JSON" * 3_000) for _ in range(count))
    yield from (RawMessage(SCHEDULE, b"no JSON") for _ in range(count))


async def test_full_stream_of_dead_letters_stops_nobody(
    broker: NatsServer, b: Peer, operator: Operator, service: Service
) -> None:
    """If rejected commands of A fill the stream of dead letters, B is served, and `/readyz` says it.

    B's commands are handled and its events are published. A's other dead letters wait until the stream has room.
    """
    await limit(operator, "TIMER_DLQ", 1_000_000)
    async with attackers(broker, 1) as (raw,):
        await measure(b, asyncio.ensure_future(raw.publish(rejects(200))))
        assert "maximum bytes exceeded" in await service.until_page("/readyz", 503)
    (events,) = await b.subscribe("timer.evt.v1.tenant-b.job-ready")
    run = body("StartRun", "tenant-b", {"runId": "run", "jobs": [{"name": "job"}]})
    await b.connection.jetstream().publish("timer.cmd.v1.tenant-b.start-run", run)
    assert json.loads((await events.next_msg(PATIENCE_SECONDS)).data)["payload"]["runId"] == "run"
    await limit(operator, "TIMER_DLQ", 100_000_000)
    await service.until_page("/readyz", 200)
    await until_messages(operator, "TIMER_DLQ", 400)


@pytest.mark.slow
async def test_full_stream_of_commands_is_reported(
    broker: NatsServer, b: Peer, operator: Operator, service: Service
) -> None:
    """If A fills the stream of commands, B's commands are refused at once and `/readyz` says it; queries go on.

    The limit keeps room for the other streams. With a higher limit, B's commands are handled again.
    """
    await b.schedule("tenant-b", "first", LONG_AFTER)
    await limit(operator, "TIMER_CMD", 1_000_000)
    async with attackers(broker, 1) as (raw,):
        await raw.publish(rejects(200))
    with pytest.raises(nats.js.errors.APIError, match="maximum bytes exceeded"):
        await b.schedule("tenant-b", "second", LONG_AFTER)
    assert (await b.request("timer.qry.v1.tenant-b.count-timers"))["counts"]["Scheduled"] == 1
    assert "stream TIMER_CMD is full" in await service.until_page("/readyz", 503)
    await limit(operator, "TIMER_CMD", 100_000_000)
    assert (await b.schedule("tenant-b", "second", LONG_AFTER))["outcome"] == "scheduled"
    await service.until_page("/readyz", 200)


async def until_messages(operator: Operator, stream: str, count: int) -> int:
    """Wait until a stream has so many messages. Return its size in bytes."""
    js = operator.connection.jetstream()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (state := (await js.stream_info(stream)).state).messages < count:
            await asyncio.sleep(0.02)
    return state.bytes


def due_timers(count: int) -> Iterable[RawMessage]:
    """Yield timers that fire at once, with large events."""
    for number in range(count):
        payload = {"serviceCallId": f"call-{number}", "dueAt": LONG_AGO, "data": "x" * 20_000}
        yield RawMessage(SCHEDULE, body("ScheduleTimer", "tenant-a", payload))


async def is_stored(operator: Operator, subject: str) -> bool:
    """Return whether the stream of events has a message with a subject."""
    info = await operator.connection.jetstream().stream_info("TIMER_EVT", subjects_filter=subject)
    return bool(info.state.subjects)


@pytest.fixture
async def limited_service(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Service]:
    limits = tmp_path / "limits.toml"
    limits.write_text('[default]\npublished_events = "10KiB"\n', "utf-8")
    settings = {**SERVICE_LOGIN, "TIMER_LOG_FORMAT": "json", "TIMER_LIMITS_FILE": str(limits)}
    async with Service(tmp_path / "service", broker.url, **settings) as running:
        yield running


@pytest.mark.slow
async def test_tenant_cannot_fill_the_stream_of_events(broker: NatsServer, limited_service: Service) -> None:
    """With a limit, A's events use a part of their stream: what a second publishes. A's other timers wait, B's fire."""
    operator = await connect(broker, "operator", Operator)
    b = await connect(broker, "tenant-b")
    await limit(operator, "TIMER_EVT", 80_000_000)
    async with attackers(broker, 1) as (raw,):
        await raw.publish(due_timers(4000))  # 80 MB
    assert (await b.schedule("tenant-b", "due"))["outcome"] == "scheduled"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_stored(operator, "timer.evt.v1.tenant-b.due-time-reached"):
            await asyncio.sleep(0.02)
    info = await operator.connection.jetstream().stream_info("TIMER_EVT")
    assert 5_000 < info.state.bytes < 40_000_000
    await limited_service.until_page("/readyz", 200)
    found = await b.request("timer.qry.v1.tenant-b.get-usage", b"{}")
    assert {each["limit"]: each.get("most") for each in found["usage"]}["published_events"] == 10 * 1024
    await operator.connection.close()
    await b.connection.close()
