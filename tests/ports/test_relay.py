"""The relay: pauses while nothing can be published, bounded claims, and settling in halves."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.harness.builders import schedule_timer
from tests.harness.clock import ManualClock
from tests.harness.timers import Timers, always, fires
from tests.harness.wiring import MAX_ATTEMPTS, VISIBILITY_TIMEOUT
from timer_service.adapters.memory import MemoryBroker, never
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.broker import PublishResult, PublishStatus
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.message import Message

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


async def nothing(_: Sequence[Message]) -> None:
    """Do nothing before publishing."""


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


async def test_the_first_refused_event_waits_for_two_probes(timers: Timers) -> None:
    """The first event that is tried alone and refused waits for 10 s, so that another one is tried in between."""
    timers.broker.refuses = always
    delay = 0
    while delay <= 2_000:  # the delay of an attempt that counts
        timers.clock.advance(milliseconds=250)
        await timers.tick()
        (latest,) = await timers.database.reader.fetch("SELECT MAX(available_at) AS at FROM timer_schedules")
        delay = latest["at"] - timers.clock.now()
    assert delay == 10_000


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


async def test_a_pass_ends_although_more_is_due(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass whose time is up claims nothing else, so a slow broker does not make it look like one that hangs."""
    monkeypatch.setattr("timer_service.core.events.relay.PASS_SECONDS", 0.1)

    async def take_long(_: Sequence[Message]) -> None:
        await asyncio.sleep(0.15)

    timers.broker.before_publishing = take_long
    await timers.tick()
    assert 0 < len(timers.broker.events) < ROWS
    while len(timers.broker.events) < ROWS:
        await timers.tick()


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


async def test_second_time_in_which_every_event_is_refused(timers: Timers) -> None:
    """Single events wait for some seconds at first, also if every event was refused for long before and then stored."""
    timers.broker.refuses = always
    await run_slowly(timers)
    timers.broker.refuses = never
    await run_slowly(timers)
    for number in range(ROWS):
        timers.send(schedule_timer(f"again-{number:02}"))
    await timers.consume()
    timers.broker.refuses = always
    await run_for(timers, 5)
    (latest,) = await timers.database.reader.fetch("SELECT MAX(available_at) AS at FROM timer_schedules")
    assert 10_000 < latest["at"] - timers.clock.now() < 30_000


async def test_refused_event_among_others(timers: Timers, caplog: pytest.LogCaptureFixture) -> None:
    """An event that is refused while others are stored is given up, and one line says so."""
    timers.broker.refuses = fires("call-03")
    await run_slowly(timers)
    assert [len(timers.broker.events), timers.metrics.settlements["buried"]] == [ROWS - 1, 1]
    assert [line.levelname for line in caplog.records if line.message.startswith("rows given up")] == ["ERROR"]


async def test_stream_that_stores_nothing(timers: Timers) -> None:
    """While nothing can be published, the relay claims single rows, after pauses that grow to five seconds."""
    timers.broker.loses_acknowledgement_of = always
    claimed_at = await run_for(timers, 60)
    pauses = [after - before for before, after in pairwise(claimed_at) if after > before]
    assert pauses[:6] == [250, 500, 1000, 2000, 4000, 5000]
    assert set(pauses[6:]) == {5000}
    assert timers.metrics.claims[3:] == [1] * (len(claimed_at) - 3), "after the first three claims, which overlap"
    assert (await timers.row("call-00"))["attempt"] == 0


async def test_probe_that_succeeds(timers: Timers) -> None:
    """When a probe is published, the same tick publishes whole claims, and the pauses begin again with the shortest."""
    timers.broker.loses_acknowledgement_of = always
    await run_for(timers, 10)
    timers.broker.loses_acknowledgement_of = never
    timers.clock.advance(seconds=5)
    before = len(timers.metrics.claims)
    assert await timers.tick() == ROWS
    assert timers.metrics.claims[before] == 1
    assert max(timers.metrics.claims[before:]) == BATCH
    timers.send(schedule_timer("late"))
    await timers.consume()
    timers.broker.loses_acknowledgement_of = always
    assert await timers.next_at() == timers.clock.now() + 250


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


async def test_partly_published_claim(timers: Timers) -> None:
    """If a claim is published in part, the relay pauses for 250 ms each time, and claims whole batches."""
    timers.broker.loses_acknowledgement_of = fires("call-00")
    claimed_at = await run_for(timers, 3)
    pauses = {after - before for before, after in pairwise(claimed_at) if after > before}
    assert len(await fired(timers)) == ROWS - 1
    assert 250 in pauses
    assert max(timers.metrics.claims) == BATCH


def count_transactions(database: SqliteDatabase) -> list[Work]:
    """Return a list that gets the work of each transaction of the relay."""
    run = database.run
    transactions: list[Work] = []

    def count(work: Work) -> Awaitable[object]:
        transactions.append(work)
        return run(work)

    cast("Any", database).run = count
    return transactions


async def test_claims_are_settled_with_the_next_one(sqlite: SqliteDatabase, clock: ManualClock) -> None:
    """On SQLite, a published claim is settled in the transaction of the next claim: both are synced at once."""
    timers = Timers(sqlite, MemoryBroker(), clock, batch_size=BATCH)
    for number in range(10 * BATCH):
        timers.send(schedule_timer(f"call-{number:02}"))
    await timers.consume()
    timers.metrics.claims.clear()
    transactions = count_transactions(sqlite)
    assert await timers.tick() == 10 * BATCH
    assert (len(transactions), len(await fired(timers)), len(timers.metrics.claims)) == (11 + 1, 10 * BATCH, 11)


async def test_rows_that_become_due_during_a_publish_are_claimed_with_its_settling(
    sqlite: SqliteDatabase, clock: ManualClock
) -> None:
    """On SQLite, the transaction that settles a claim also takes the rows that became due while it was published."""
    timers = Timers(sqlite, MemoryBroker(), clock, batch_size=BATCH)
    await timers.schedule("now")
    await timers.schedule("soon", clock.now() + 1000)
    timers.metrics.claims.clear()

    async def wait(_: Sequence[Message]) -> None:
        clock.advance(seconds=1)

    timers.broker.before_publishing = wait
    transactions = count_transactions(sqlite)
    assert await timers.tick() == 2
    assert (len(transactions), await fired(timers)) == (3, ["now", "soon"])
    assert timers.metrics.claims == [1, 1]


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "committing"])
@pytest.mark.parametrize("transaction", [2, 3, 4])
async def test_cancelled_pass(sqlite: SqliteDatabase, clock: ManualClock, transaction: int, *, begun: bool) -> None:
    """Wherever a pass is cancelled, all events that it has published are settled at its end, each once."""
    timers = Timers(sqlite, MemoryBroker(), clock, batch_size=BATCH)
    for number in range(3 * BATCH):
        timers.send(schedule_timer(f"call-{number:02}"))
    await timers.consume()
    run = sqlite.run
    left = transaction

    async def cancel(work: Work) -> object:
        nonlocal left
        left -= 1
        if left == 0 and (task := asyncio.current_task()) is not None:
            task.cancel()
            if not begun:
                await asyncio.sleep(0)
        return await run(work)

    cast("Any", sqlite).run = cancel
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(timers.tick())
    assert sorted(await fired(timers)) == sorted(timers.fired()) != []
    assert timers.metrics.lost == 0


async def test_first_claim_is_small(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """The first claim of a backlog takes 100 rows, so that their events come soon. The next ones take more."""
    timers = Timers(store, memory_broker, clock)
    for number in range(700):
        timers.send(schedule_timer(f"call-{number:03}"))
    await timers.consume()
    timers.metrics.claims.clear()
    await timers.tick()
    assert timers.metrics.claims == [100, 400, 200]
    await timers.schedule("later")
    timers.metrics.claims.clear()
    await timers.tick()
    assert timers.metrics.claims == [1]


async def test_timer_that_becomes_due_during_a_tick(timers: Timers) -> None:
    """A timer that becomes due while others are published is claimed in the same tick."""
    await timers.schedule("soon", timers.clock.now() + 1000)

    async def wait(_: Sequence[Message]) -> None:
        timers.clock.advance(seconds=1)

    timers.broker.before_publishing = wait
    assert await timers.tick() == ROWS + 1
    assert "soon" in await fired(timers)


class FullBroker(MemoryBroker):
    """A broker without room for any event."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        return [PublishResult(PublishStatus.FULL, "full")] * len(messages)


async def test_full_stream(store: Database, clock: ManualClock) -> None:
    """While the stream is full, the relay pauses as while the broker is away, and no attempt counts."""
    timers = Timers(store, FullBroker(), clock)
    timers.send(schedule_timer("call-00"))
    await timers.consume()
    claimed_at = await run_for(timers, 5)
    assert claimed_at == [0, 250, 750, 1750, 3750]
    assert (await timers.row("call-00"))["attempt"] == 0


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("batches", [2, 3])
async def test_error_of_an_overlapping_batch(timers: Timers, batches: int, failing: int) -> None:
    """If publishing one of two overlapping batches raises an error, the tick raises it. The other batch is settled."""
    await timers.sql(f"DELETE FROM timer_schedules WHERE service_call_id >= 'call-{batches * BATCH:02}'")
    calls = iter(range(batches))

    async def fail_once(_: Sequence[Message]) -> None:
        if next(calls) == failing:
            raise RuntimeError("this batch fails")

    timers.broker.before_publishing = fail_once
    with pytest.raises(RuntimeError, match="this batch fails"):
        await timers.tick()
    assert len(await fired(timers)) >= BATCH


async def test_clock_set_back_during_a_pause(timers: Timers) -> None:
    """A clock that is set back by an hour during a pause does not keep the relay from claiming."""
    timers.broker.loses_acknowledgement_of = always
    await run_for(timers, 10)
    timers.broker.loses_acknowledgement_of = never
    timers.clock.advance(hours=-1)
    await timers.sql("UPDATE timer_schedules SET due_at = due_at - 7200000, available_at = available_at - 7200000")
    assert await timers.tick() == ROWS


async def test_bodies_are_encoded_in_chunks(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A claim of large rows is encoded and published in chunks, in order, and completed as a whole."""
    timers = Timers(store, memory_broker, clock)
    names = [f"call-{number:02}" for number in range(40)]
    for name in names:
        timers.send(schedule_timer(name, clock.now() + int(name[-2:]), data="x" * 64_000))
    await timers.consume()
    clock.advance(seconds=1)
    sizes: list[int] = []

    async def record(messages: Sequence[Message]) -> None:
        sizes.append(sum(len(message.body) for message in messages))

    memory_broker.before_publishing = record
    while await timers.tick():
        pass
    assert (timers.fired(), sorted(await fired(timers))) == (names, names)
    assert len(sizes) > 1
    assert max(sizes) < 2 * MIB + 65_000


async def test_slow_publishing_does_not_outlast_the_lease(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If publishing is so slow that the lease would expire, the other rows of the claim are released in time."""
    monkeypatch.setattr("timer_service.core.events.relay._CHUNK_CHARACTERS", MIB // 4)
    timers = Timers(store, memory_broker, clock)
    for number in range(25):
        timers.send(schedule_timer(f"call-{number:02}", data="x" * 64_000))
    await timers.consume()
    start = clock.now()

    async def be_slow(_: Sequence[Message]) -> None:
        clock.advance(seconds=9)

    memory_broker.before_publishing = be_slow
    await timers.tick()
    assert clock.now() - start < VISIBILITY_TIMEOUT.total_seconds() * 1000
    assert timers.metrics.lost == 0
    assert timers.metrics.settlements["released"] > 0
    memory_broker.before_publishing = nothing
    clock.advance(seconds=1)
    while await timers.tick():
        pass
    assert Counter(timers.fired()) == Counter(f"call-{number:02}" for number in range(25))


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


async def test_row_that_cannot_be_settled(timers: Timers) -> None:
    """If one row cannot be settled, the others of its claim are settled. The row keeps its lease."""
    await Trap(timers).set("call-03")
    await timers.tick()
    assert len(await fired(timers)) == ROWS - 1
    row = await timers.row("call-03")
    assert (row["state"], row["available_at"] - timers.clock.now()) == ("Scheduled", 30_000)


async def test_several_rows_that_cannot_be_settled(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Rows that cannot be settled do not fail the tick, however many, if other rows of their claim were settled."""
    timers = Timers(store, memory_broker, clock)
    names = [f"call-{number:02}" for number in range(20)]
    for name in names:
        timers.send(schedule_timer(name))
    await timers.consume()
    await Trap(timers).set(*names[14:])
    await timers.tick()
    assert sorted(await fired(timers)) == names[:14]


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
