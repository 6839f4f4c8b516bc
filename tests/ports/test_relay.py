"""The relay: pauses while nothing can be published, bounded claims, and settling in halves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker, never
from tests.harness.timers import Timers, always, fires, no_hook
from tests.harness.wiring import MAX_ATTEMPTS
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.lease import Lease
from timer_service.core.events.settlement import Settlement, Settler
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Message
from timer_service.timers.store import TIMERS

ROWS = 20
BATCH = 5
MIB = 1024 * 1024
Work = Callable[[Transaction], Awaitable[object]]


@pytest.fixture
async def timers(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    """Return timers that are due, with small claims."""
    timers = Timers(store, memory_broker, clock, batch_size=BATCH)
    for number in range(ROWS):
        timers.send(schedule_timer(f"call-{number:02}"))
    await timers.consume()
    timers.metrics.claims.clear()  # of the outbox
    return timers


async def run_for(timers: Timers, seconds: float) -> list[int]:
    """Tick as the loop does. Return the milliseconds at which the relay claimed rows."""
    start = timers.clock.now()
    claimed_at: list[int] = []
    while timers.clock.now() < start + seconds * 1000:
        claims = len(timers.metrics.claims)
        next_at = await timers.next_at()
        claimed_at += [timers.clock.now() - start] * (len(timers.metrics.claims) - claims)
        timers.clock.set(max(timers.clock.now() + 1, next_at or 0))
    return claimed_at


async def run_slowly(timers: Timers) -> None:
    """Tick a hundred times, once a minute."""
    for _ in range(100):
        await timers.tick()
        timers.clock.advance(minutes=1)


async def test_stream_that_refuses_every_event(timers: Timers) -> None:
    """If the broker refuses every event, no timer is given up, however long it takes. The health names the reason."""
    timers.broker.refuses = always
    await timers.tick()
    available = [(await timers.row(f"call-{number:02}"))["available_at"] for number in range(ROWS)]
    assert max(available) <= timers.clock.now(), "rows that were refused together are tried singly, at once"
    await run_slowly(timers)
    during = timers.publishing.health
    rows = [await timers.row(f"call-{number:02}") for number in range(ROWS)]
    timers.broker.refuses = never
    await run_slowly(timers)
    assert max(row["attempt"] for row in rows) <= 1, "only the first refusal may be the fault of the event"
    assert timers.metrics.settlements["buried"] == 0
    assert "events cannot be stored" in (during.reason or "")
    assert len(timers.broker.events) == ROWS
    assert timers.publishing.health == HEALTHY


async def test_data_that_is_not_utf8(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """The damaged data of one timer does not stop the others. It is passed on with U+FFFD in place of the damage."""
    timers = Timers(sqlite, memory_broker, clock, batch_size=BATCH)
    for number in range(ROWS):
        timers.send(schedule_timer(f"call-{number:02}", data="x"))
    await timers.consume()
    await timers.sql("UPDATE timer_schedules SET data = CAST(x'22ff22' AS TEXT) WHERE service_call_id = 'call-07'")
    await timers.tick()
    assert len(timers.broker.events) == ROWS
    assert [b"\xef\xbf\xbd" in event.body for event in timers.broker.events].count(True) == 1
    rows = await sqlite.reader.fetch("SELECT state FROM timer_schedules")
    assert [row["state"] for row in rows] == ["Reached"] * ROWS


@pytest.mark.parametrize(("attempts", "sizes"), [(MAX_ATTEMPTS - 1, [BATCH]), (MAX_ATTEMPTS, [1] * BATCH)])
async def test_rows_whose_attempts_are_used_up(timers: Timers, attempts: int, sizes: list[int]) -> None:
    """Rows are published together in their last attempt. Only after it, each is published alone."""
    await timers.sql(f"DELETE FROM timer_schedules WHERE service_call_id >= 'call-{BATCH:02}'")
    await timers.sql(f"UPDATE timer_schedules SET attempt = {attempts}")
    published: list[int] = []

    async def record(messages: Sequence[Message]) -> None:
        published.append(len(messages))

    timers.broker.before_publishing = record
    await timers.tick()
    assert published == sizes


async def test_several_refused_events_do_not_stop_the_others(timers: Timers) -> None:
    """If the oldest events are refused, they look like all events at first. They take turns, so the others get one."""
    bad = [f"call-{number:02}" for number in range(BATCH)]
    timers.broker.refuses = lambda message: any(fires(call)(message) for call in bad)
    for _ in range(100):
        await timers.tick()
        timers.clock.advance(seconds=1)
    assert len(timers.broker.events) == ROWS - BATCH


@pytest.mark.parametrize("full", [False, True])
async def test_stream_that_stores_nothing(timers: Timers, full: bool) -> None:  # noqa: FBT001
    """While nothing can be published, the relay claims single rows, after pauses that grow to five seconds.

    No attempt counts.
    """
    if full:
        timers.broker.has_no_room_for = always
    else:
        timers.broker.loses_acknowledgement_of = always
    claimed_at = await run_for(timers, 60)
    pauses = [after - before for before, after in pairwise(claimed_at) if after > before]
    assert pauses[:6] == [250, 500, 1000, 2000, 4000, 5000]
    assert set(pauses[6:]) == {5000}
    assert set(timers.metrics.claims[3:]) == {1}, "after the first three claims, which overlap"
    assert (await timers.row("call-00"))["attempt"] == 0


@pytest.mark.parametrize("outage", [0.3, 20])
async def test_reconnect_ends_the_pause(timers: Timers, outage: float) -> None:
    """After an outage of the connection, timers are late by 250 ms at most, however long the pauses had become."""
    timers.broker.loses_acknowledgement_of = always
    await run_for(timers, 30)
    timers.broker.health = Health.down("gone")
    await run_for(timers, outage)
    timers.broker.loses_acknowledgement_of = never
    timers.broker.health = HEALTHY
    start = timers.clock.now()
    while len(await fired(timers)) < ROWS:
        timers.clock.set(max(timers.clock.now() + 1, await timers.next_at() or 0))
    assert timers.clock.now() - start <= 260


async def fired(timers: Timers) -> list[str]:
    rows = await timers.database.reader.fetch("SELECT service_call_id FROM timer_schedules WHERE state = 'Reached'")
    return [row["service_call_id"] for row in rows]


@pytest.mark.parametrize("transaction", [2, 3, 4])
@pytest.mark.parametrize("waiting", [False, True])
async def test_cancelled_pass(sqlite: SqliteDatabase, clock: ManualClock, transaction: int, *, waiting: bool) -> None:
    """Wherever a pass is cancelled, all events that it has published are settled at its end, each once.

    `waiting`: the transaction waits for another one, so it does not begin.
    """
    timers = Timers(sqlite, MemoryBroker(), clock, batch_size=BATCH)
    for number in range(3 * BATCH):
        timers.send(schedule_timer(f"call-{number:02}"))
    await timers.consume()
    run = sqlite.run
    left = transaction

    async def cancel(work: Work) -> object:
        nonlocal left
        left -= 1
        if left == 0 and waiting:
            raise asyncio.CancelledError
        if left == 0 and (task := asyncio.current_task()) is not None:
            task.cancel()
        return await run(work)

    cast("Any", sqlite).run = cancel
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(timers.tick())
    assert sorted(await fired(timers)) == sorted(timers.fired()) != []
    assert timers.metrics.lost == 0


async def test_cancelled_settling(sqlite: SqliteDatabase, clock: ManualClock) -> None:
    """If settling several claims is cancelled at the first one, all of them are settled later."""
    timers = Timers(sqlite, MemoryBroker(), clock)
    for number in range(2):
        await timers.schedule(f"call-{number}")
    lease = Lease(TIMERS, timedelta(seconds=30))
    settler = Settler(sqlite, lease, clock, timers.metrics)
    async with sqlite.transaction() as tx:
        claims = [await lease.claim(tx, clock.now(), 1) for _ in range(2)]
    task = asyncio.create_task(settler.settle(Settlement(clock.now(), complete=rows) for rows in claims))
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await settler.settle_left()
    assert len(await fired(timers)) == 2
    assert timers.metrics.lost == 0


@pytest.mark.parametrize("failing", [0, 1])
async def test_error_of_an_overlapping_batch(timers: Timers, failing: int) -> None:
    """If publishing one of two overlapping batches raises an error, the tick raises it. The other batch is settled."""
    await timers.sql(f"DELETE FROM timer_schedules WHERE service_call_id >= 'call-{2 * BATCH:02}'")
    calls = iter(range(2))

    async def fail_once(_: Sequence[Message]) -> None:
        if next(calls) == failing:
            raise RuntimeError("this batch fails")

    timers.broker.before_publishing = fail_once
    with pytest.raises(RuntimeError, match="this batch fails"):
        await timers.tick()
    assert len(await fired(timers)) >= BATCH


async def schedule_large(timers: Timers) -> list[str]:
    """Schedule large timers of several tenants, and wait until they are due. Return their names."""
    names = [f"call-{number:02}" for number in range(40)]
    for name in names:
        due_at = timers.clock.now() + int(name[-2:])
        timers.send(schedule_timer(name, due_at, tenant=name, data="x" * 64_000), tenant=name)
    await timers.consume()
    timers.clock.advance(seconds=1)
    return names


async def test_bodies_are_encoded_in_chunks(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A claim of large rows, one of each tenant, is encoded and published in chunks, and completed as a whole."""
    timers = Timers(store, memory_broker, clock)
    names = await schedule_large(timers)
    sizes: list[int] = []

    async def record(messages: Sequence[Message]) -> None:
        sizes.append(sum(len(message.body) for message in messages))

    memory_broker.before_publishing = record
    while await timers.tick():
        pass
    assert (timers.fired(), sorted(await fired(timers))) == (names, names)
    assert len(sizes) > 1
    assert max(sizes) < 2 * MIB + 65_000


@pytest.mark.parametrize("fault", ["away", "slow", "full"])
async def test_claim_that_is_published_in_part(sqlite: SqliteDatabase, clock: ManualClock, fault: str) -> None:
    """After a fault in one chunk of a claim, or after half of the lease, the rest is released, and not lost."""
    timers = Timers(sqlite, MemoryBroker(), clock)
    names = await schedule_large(timers)
    fetch_each = sqlite.reader.fetch_each

    async def fail(*_: object) -> Any:
        cast("Any", sqlite.reader).fetch_each = fetch_each
        raise DatabaseUnavailableError("away")

    async def interrupt(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = no_hook
        if fault == "away":
            cast("Any", sqlite.reader).fetch_each = fail
        elif fault == "slow":
            clock.advance(seconds=16)
        else:
            timers.broker.has_no_room_for = fires(names[0])

    timers.broker.before_publishing = interrupt
    await timers.tick()
    assert len(timers.fired()) < len(names) - 1
    timers.broker.has_no_room_for = never
    for _ in range(2):
        clock.advance(seconds=1)
        await timers.tick()
    assert timers.metrics.settlements["released"] > 0
    assert sorted(timers.fired()) == sorted(await fired(timers)) == names


class Trap:
    """Makes the database refuse to settle chosen timers."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    async def set(self, *calls: str) -> None:
        names = ", ".join(f"'{call}'" for call in calls)
        condition = f"NEW.reached_at IS NOT NULL AND NEW.service_call_id IN ({names})"
        if self._timers.database.engine == "sqlite":
            await self._timers.sql(
                f"CREATE TRIGGER trap BEFORE UPDATE ON timer_schedules WHEN {condition} "
                "BEGIN SELECT RAISE(ABORT, 'trapped'); END"
            )
            return
        await self._timers.sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'trapped' USING ERRCODE = 'check_violation'; END $$"
        )
        await self._timers.sql(
            f"CREATE TRIGGER trap BEFORE UPDATE ON timer_schedules FOR EACH ROW WHEN ({condition}) "
            "EXECUTE FUNCTION refuse()"
        )

    async def remove(self) -> None:
        table = "" if self._timers.database.engine == "sqlite" else " ON timer_schedules"
        await self._timers.sql(f"DROP TRIGGER trap{table}")


@pytest.mark.parametrize("alone", [False, True])
async def test_row_that_cannot_be_settled(timers: Timers, *, alone: bool) -> None:
    """If one row cannot be settled, other rows are, of its claim and of the next one. The row keeps its lease."""
    if alone:
        await timers.sql("DELETE FROM timer_schedules WHERE service_call_id <> 'call-03'")
    await Trap(timers).set("call-03")
    await timers.tick()
    assert len(await fired(timers)) == (0 if alone else ROWS - 1)
    await timers.schedule("another")
    await timers.tick()
    assert "another" in await fired(timers)
    row = await timers.row("call-03")
    assert (row["state"], row["available_at"] - timers.clock.now()) == ("Scheduled", 30_000)


async def test_no_row_can_be_settled(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """If no row can be settled, the ticks fail and claim nothing. Later the rows are settled, not published again."""
    timers = Timers(store, memory_broker, clock)
    names = [f"call-{number:02}" for number in range(100)]
    for name in names:
        timers.send(schedule_timer(name))
    await timers.consume()
    trap = Trap(timers)
    await trap.set(*names)
    for _ in range(3):
        with pytest.raises(Exception, match="trapped"):
            await timers.tick()
    published = timers.metrics.publishes
    await trap.remove()
    await timers.tick()
    settled = len(await fired(timers))
    clock.advance(minutes=1)
    while await timers.tick():
        pass
    assert (published, sorted(await fired(timers))) == (1, names)
    assert settled >= 80, "the ticks that failed gave up a few rows each"
