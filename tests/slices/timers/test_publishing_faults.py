"""What becomes of due timers while the broker, the database or the process fails."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.timers import Timers, always, fires, no_hook
from tests.harness.wiring import MAX_ATTEMPTS, VISIBILITY_TIMEOUT
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.lease import Lease, take_over_claims
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.message import Message
from timer_service.timers.store import TIMERS


async def send_all(timers: Timers, *calls: str) -> None:
    """Schedule timers that are due now, in one batch."""
    for call in calls:
        timers.send(schedule_timer(call))
    await timers.consume()


# The broker


async def test_refused_event_is_retried_then_buried(timers: Timers) -> None:
    """A refused event is retried after a backoff and buried in the end. Other events fire at once."""
    await send_all(timers, "a", "bad", "c")
    timers.broker.refuses = fires("bad")
    waits: list[int] = []
    for _ in range(MAX_ATTEMPTS):
        assert await timers.tick() > 0
        if (at := await timers.next_at()) is not None:
            waits.append(at - timers.clock.now())
            timers.clock.set(at)
    row = await timers.row("bad")
    assert timers.fired() == ["a", "c"]
    assert (row["state"], row["attempt"], row["last_error"], row["due_at"]) == ("Failed", 3, "refused", NOW)
    assert len(waits) == MAX_ATTEMPTS - 1
    assert all(0 <= wait <= ceiling for wait, ceiling in zip(waits, (1000, 2000), strict=True))
    assert timers.metrics.settlements == {"fired": 2, "retried": 2, "buried": 1}
    assert (timers.metrics.given_up, timers.metrics.failures) == ({"timer_schedules": 1}, {"refused": 3})


async def test_refused_events_one_after_the_other(timers: Timers) -> None:
    """If nothing but two refused events is published, the second one is given up too: the first one is not counted."""
    timers.broker.refuses = always
    for call in ("call-1", "call-2"):
        await timers.schedule(call)
        for _ in range(MAX_ATTEMPTS):
            await timers.tick()
            timers.clock.advance(minutes=5)
        assert (await timers.row(call))["state"] == "Failed"


async def test_outage_counts_no_attempts(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While the broker is down no attempts are counted, and commands are handled. Then all fire, oldest first."""
    timers = Timers(store, memory_broker, clock, batch_size=2)
    memory_broker.health = Health.down("gone")
    for number in range(6):
        timers.send(schedule_timer(f"call-{number}", NOW - 60_000 + number))
    await timers.consume()
    for _ in range(20):
        await timers.tick()
        timers.clock.advance(minutes=1)
    attempts = [(await timers.row(f"call-{number}"))["attempt"] for number in range(6)]
    memory_broker.health = HEALTHY
    assert (await timers.tick(), attempts) == (6, [0] * 6)
    assert timers.fired() == [f"call-{number}" for number in range(6)]


# Crashes and corrupt rows


async def test_restart_takes_over_at_once(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> None:
    """If no other process can exist, a restart does not wait for the leases of the dead process."""
    timers = Timers(sqlite, memory_broker, ManualClock())
    await timers.schedule()

    def crash(_: Message) -> bool:
        raise asyncio.CancelledError

    memory_broker.loses_acknowledgement_of = crash
    with pytest.raises(asyncio.CancelledError):
        await timers.tick()
    memory_broker.loses_acknowledgement_of = never
    restarted = Timers(sqlite, memory_broker, ManualClock(NOW + 1))
    await take_over_claims(restarted.database, Lease(TIMERS, VISIBILITY_TIMEOUT), restarted.clock.now())
    assert await restarted.tick() == 1
    row = await restarted.row()
    assert (row["state"], row["attempt"]) == ("Reached", 2)
    assert [event.id for event in memory_broker.events] == [row["event_id"]]


async def test_row_that_kills_the_process(timers: Timers) -> None:
    """A row that kills the process is given up after three deaths alone. It costs no other row its attempts."""
    await send_all(timers, "a", "killer", "z")

    async def kill(messages: Sequence[Message]) -> None:
        if any(fires("killer")(message) for message in messages):
            raise asyncio.CancelledError

    timers.broker.before_publishing = kill
    deaths = 0
    async with asyncio.timeout(60):
        while (row := await timers.row("killer"))["state"] == "Scheduled":
            try:
                await timers.tick()
            except asyncio.CancelledError:
                deaths += 1
            timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    assert deaths == MAX_ATTEMPTS + 3
    assert sorted(timers.fired()) == ["a", "z"]
    assert (row["state"], row["last_error"]) == ("Failed", "gave up: claimed and never settled")
    assert timers.metrics.given_up == {"timer_schedules": 1}


async def test_crash_loop_with_another_cause(store: Database, memory_broker: MemoryBroker) -> None:
    """A process that dies again and again after its claims buries nothing. Afterwards every timer fires."""
    timers = Timers(store, memory_broker, ManualClock(), batch_size=4)
    names = [f"call-{number}" for number in range(6)]
    await send_all(timers, *names)

    async def die(messages: Sequence[Message]) -> None:
        if len(messages) > 1:
            raise asyncio.CancelledError

    memory_broker.before_publishing = die
    for _ in range(20):
        with suppress(asyncio.CancelledError):
            await timers.tick()
        timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    memory_broker.before_publishing = no_hook
    while await timers.tick():
        pass
    assert (sorted(timers.fired()), timers.metrics.given_up) == (names, {})


async def test_corrupt_row(timers: Timers) -> None:
    """A row that cannot be encoded fails alone, and is buried after all attempts with the reason."""
    for number in range(20):
        timers.send(schedule_timer(f"call-{number}", data=number))
    await timers.consume()
    await timers.sql("UPDATE timer_schedules SET data = '{oops' WHERE service_call_id = 'call-7'")
    for _ in range(MAX_ATTEMPTS):
        await timers.tick()
        timers.clock.advance(minutes=10)
    row = await timers.row("call-7")
    assert sorted(timers.fired()) == sorted(f"call-{number}" for number in range(20) if number != 7)
    assert (row["state"], row["attempt"]) == ("Failed", MAX_ATTEMPTS)
    assert row["last_error"].startswith("cannot be encoded: ")
