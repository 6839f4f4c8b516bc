"""A row that another session has locked, or a statement that takes too long, holds up only its own commands."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.locks import LockedPostgres
from tests.harness.timers import Timers
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import database as database_module
from timer_service.core.due.loop import Pass
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service import clock_repair
from timer_service.core.service.clock_repair import ClockRepair, leased_rows
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.core.values.message import Command, Message, Position
from timer_service.timers import SLICE
from timer_service.timers.retention import delete_settled
from timer_service.timers.store import TIMERS

LATER = NOW + 60_000
LOCK_TIMER = "SELECT 1 FROM timer_schedules WHERE service_call_id = '{}' FOR UPDATE"


@pytest.fixture
def timers(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    """Return the timers slice on PostgreSQL."""
    return Timers(locks.database, memory_broker, clock)


def cancel(timers: Timers, *calls: str) -> list[Position]:
    return [timers.send(cancel_timer(call), message="cancel-timer") for call in calls]


def schedule(timers: Timers, *calls: str, tenant: str = "acme", due_at: int = LATER) -> list[Position]:
    return [timers.send(schedule_timer(call, due_at=due_at, tenant=tenant), tenant=tenant) for call in calls]


async def try_again(timers: Timers) -> None:
    timers.broker.redeliver()
    await timers.consume()


async def test_others_are_handled_beside_a_locked_row(
    timers: Timers, locks: LockedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """All commands but the one on the locked row are handled. It is retried, and handled when the row is free."""
    calls = [f"call-{number}" for number in range(20)]
    schedule(timers, *calls)
    await timers.consume()
    async with locks.locked(LOCK_TIMER.format("call-7")):
        positions = cancel(timers, *calls)
        others = schedule(timers, *calls, tenant="other")
        await timers.consume()
        assert timers.broker.settlements.retried == [(positions[7], timedelta(seconds=1))]
        assert timers.outcomes() == {"cancelled": 19, "scheduled": 40}
        assert set(others) <= set(timers.broker.settlements.acknowledged)
    await try_again(timers)
    assert timers.outcomes() == {"cancelled": 20, "scheduled": 40}
    (line,) = (each for each in caplog.records if each.getMessage() == "command blocked; retrying it later")
    assert 'in relation "timer_schedules"' in line.__dict__["reason"]
    assert "the database is unavailable" not in caplog.text


async def test_a_lock_that_is_held_for_long(
    timers: Timers, locks: LockedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The delays of a locked command grow, and no attempt counts: it is neither rejected nor handled as a suspect."""
    schedule(timers, "call-1")
    await timers.consume()
    async with locks.locked(LOCK_TIMER.format("call-1")):
        (position,) = cancel(timers, "call-1")
        await timers.consume()
        for _ in range(11):
            await try_again(timers)
    delays = [delay // timedelta(seconds=1) for _, delay in timers.broker.settlements.retried]
    assert delays == [1, 2, 4, 8, 16, 32, *[60] * 6]
    assert list(await timers.database.reader.fetch("SELECT 1 AS one FROM suspects")) == []
    await try_again(timers)
    assert timers.broker.settlements.acknowledged[-1] == position
    assert timers.broker.dead_letters == []
    assert caplog.text.count("command blocked; retrying it later") == 12


async def test_the_health_beside_a_locked_row(timers: Timers, locks: LockedPostgres) -> None:
    """One locked row is no outage: the health of commands and of the database stays good."""
    schedule(timers, "call-1")
    await timers.consume()
    async with locks.locked(LOCK_TIMER.format("call-1")):
        cancel(timers, "call-1")
        await timers.consume()
        await try_again(timers)
        assert (timers.consumer.health, timers.database.health) == (HEALTHY, HEALTHY)


async def test_the_health_if_rows_are_locked_one_after_the_other(timers: Timers, locks: LockedPostgres) -> None:
    """Locked rows with handled commands between them are no outage, however many there have been."""
    calls = ["call-1", "call-2", "call-3"]
    schedule(timers, *calls)
    await timers.consume()
    found: list[Health] = []
    for call in calls:
        async with locks.locked(LOCK_TIMER.format(call)):
            cancel(timers, call)
            await timers.consume()
            found.append(timers.consumer.health)
        await try_again(timers)
    assert timers.outcomes() == {"scheduled": 3, "cancelled": 3}
    assert found == [HEALTHY] * 3


async def test_the_health_if_nothing_can_be_handled(timers: Timers, locks: LockedPostgres) -> None:
    """If every command waits for a lock, the health of commands says so. The commands are handled afterwards."""
    async with locks.locked("LOCK TABLE timer_schedules"):
        schedule(timers, "call-1", "call-2", "call-3")
        await timers.consume()
        assert "every command waits for a lock" in (timers.consumer.health.reason or "")
    await try_again(timers)
    assert timers.outcomes() == {"scheduled": 3}


async def test_a_slow_statement(
    timers: Timers, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A command whose statement reaches the time limit does not hold up others, and is no outage."""
    monkeypatch.setattr(database_module, "_STATEMENT_SECONDS", 0.3)

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult | None]:
        if any(command.tenant == "slow" for command in commands):
            await tx.fetch("SELECT pg_sleep(60)")
        return await SLICE.handle(tx, commands, now, quotas=Quotas())

    parts = make_parts(timers.database, timers.broker, clock, timers.metrics)
    timers.consumer = parts.consumer([Route(SLICE.commands, handle, timers._wake)])
    for tenant in ("acme", "slow", "other"):
        schedule(timers, "call-1", tenant=tenant)
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 2}
    assert [delay for _, delay in timers.broker.settlements.retried] == [timedelta(seconds=1)]
    assert (timers.consumer.health, timers.database.health) == (HEALTHY, HEALTHY)
    assert "the database is unavailable" not in caplog.text


@pytest.mark.parametrize("refused", [None, b"call-9"], ids=["whole claim", "part of a claim"])
async def test_settling_beside_a_locked_row(timers: Timers, locks: LockedPostgres, refused: bytes | None) -> None:
    """A row that is locked after its event was published is settled when it is free. It is published once."""
    schedule(timers, *(f"call-{number}" for number in range(10)), due_at=NOW)
    await timers.consume()

    async def lock(_messages: Sequence[Message]) -> None:
        await locks.lock(LOCK_TIMER.format("call-7"))

    async def settled() -> set[str]:
        rows = await timers.database.reader.fetch("SELECT service_call_id FROM timer_schedules WHERE state = 'Reached'")
        return {row["service_call_id"] for row in rows}

    timers.broker.refuses = lambda message: refused is not None and refused in message.body
    timers.broker.before_publishing = lock
    first = await timers.relay.tick(timers.clock.now())
    during = await settled()
    await timers.relay.tick(timers.clock.now())
    await locks.unlock()
    timers.broker.before_publishing = no_hook
    await timers.relay.tick(timers.clock.now())
    published = {f"call-{number}" for number in range(10)} - ({"call-9"} if refused else set())
    assert (during, await settled()) == (published - {"call-7"}, published)
    assert first.next_at is not None
    assert first.next_at <= timers.clock.now() + 1000
    assert set(Counter(message.id for message in timers.broker.events).values()) == {1}
    assert (timers.metrics.lost, timers.metrics.settlements["fired"]) == (0, len(published))


async def test_settling_beside_a_locked_table(timers: Timers, locks: LockedPostgres) -> None:
    """If the whole table is locked after events were published, they are not published again, and none is lost."""
    schedule(timers, *(f"call-{number}" for number in range(5)), due_at=NOW)
    await timers.consume()

    async def lock(_messages: Sequence[Message]) -> None:
        await locks.lock("LOCK TABLE timer_schedules")

    timers.broker.refuses = lambda message: b"call-0" in message.body
    timers.broker.before_publishing = lock
    with pytest.raises(DatabaseBlockedError):  # the table cannot be read either
        await timers.relay.tick(timers.clock.now())
    await locks.unlock()
    timers.broker.before_publishing = no_hook
    await timers.relay.tick(timers.clock.now())
    assert (len(timers.broker.events), timers.metrics.lost, timers.metrics.settlements["fired"]) == (4, 0, 4)
    assert (await timers.row("call-0"))["attempt"] == 1


async def no_hook(_messages: Sequence[Message]) -> None:
    """Do nothing before messages are published."""


async def test_rows_of_a_wrong_clock_beside_a_locked_one(
    timers: Timers, locks: LockedPostgres, clock: ManualClock
) -> None:
    """A row that waits for a wrong time and is locked does not hold up the repair of others. It follows in a minute."""
    schedule(timers, "call-1", "call-2", "call-3")
    await timers.consume()
    async with timers.database.transaction() as tx:
        await tx.execute("UPDATE timer_schedules SET available_at = :wrong", {"wrong": after(days=365)})
    repair = ClockRepair(locks.database, clock, [leased_rows(TIMERS, timedelta(seconds=30))])
    async with locks.locked(LOCK_TIMER.format("call-2")):
        first = await repair.tick(clock.now())
    assert (first.done, first.next_at) == (2, clock.now() + 60_000)
    clock.advance(minutes=1)
    assert await repair.tick(clock.now()) == Pass(1)
    rows = await timers.database.reader.fetch("SELECT available_at FROM timer_schedules")
    assert {row["available_at"] for row in rows} == {LATER}


async def test_more_locked_rows_of_a_wrong_clock_than_one_transaction_repairs(
    timers: Timers, locks: LockedPostgres, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows of a page are locked, the others are repaired, and no statement waits for a lock."""
    monkeypatch.setattr(clock_repair, "_MOST_REPAIRED", 1)
    schedule(timers, "call-1", "call-2", "call-3")
    await timers.consume()
    async with timers.database.transaction() as tx:
        for call, days in (("call-1", 365), ("call-2", 366), ("call-3", 367)):
            wrong = {"call": call, "wrong": after(days=days)}
            await tx.execute("UPDATE timer_schedules SET available_at = :wrong WHERE service_call_id = :call", wrong)
    repair = ClockRepair(locks.database, clock, [leased_rows(TIMERS, timedelta(seconds=30))])
    async with locks.locked("SELECT 1 FROM timer_schedules WHERE service_call_id <> 'call-3' FOR UPDATE"):
        passes = [await repair.tick(clock.now()) for _ in range(2)]
    assert [each.done for each in passes] == [1, 0]
    assert passes[-1].next_at == clock.now() + 60_000
    rows = await timers.database.reader.fetch("SELECT service_call_id FROM timer_schedules WHERE available_at = due_at")
    assert [row["service_call_id"] for row in rows] == ["call-3"]


async def test_retention_beside_a_locked_cancellation(
    timers: Timers, locks: LockedPostgres, clock: ManualClock
) -> None:
    """Retention deletes the cancellations that no other session has locked."""
    for prefix in ("a", "b"):
        await timers.cancel_many(prefix)
    for _ in range(2):  # the second pass is a minute later
        await timers.pass_cancellations()
        clock.advance(minutes=2)
    async with locks.locked("SELECT 1 FROM timer_cancellations WHERE prefix = 'a' FOR UPDATE"):
        deleted = await in_transaction(locks.database, lambda tx: delete_settled(tx, clock.now(), 10))
    assert deleted == 1
