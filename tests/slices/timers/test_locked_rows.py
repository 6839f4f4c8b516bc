"""A row that another session has locked, or a statement that takes too long, holds up only its own commands."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.locks import LockedPostgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.timers import Timers
from timer_service.adapters.postgres import database as database_module
from timer_service.core.intake.route import CommandResult
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.core.values.message import Command, Message

LATER = NOW + 60_000
LOCK_TIMER = "SELECT 1 FROM timer_schedules WHERE service_call_id = '{}' FOR UPDATE"


@pytest.fixture
def timers(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    """Return the timers slice on PostgreSQL."""
    return Timers(locks.database, memory_broker, clock)


def cancel(timers: Timers, *calls: str) -> None:
    for call in calls:
        timers.send(cancel_timer(call), message="cancel-timer")


def schedule(timers: Timers, *calls: str, tenant: str = "acme", due_at: int = LATER) -> None:
    for call in calls:
        timers.send(schedule_timer(call, due_at=due_at, tenant=tenant), tenant=tenant)


async def try_again(timers: Timers, seconds: float = 1) -> None:
    """Handle what waits when its delay is over."""
    timers.clock.advance(seconds=seconds)
    await timers.consume()


async def waiting(timers: Timers) -> list[tuple[int, int]]:
    """Return after how many seconds each set of waiting commands may be applied, and how often the first one failed."""
    rows = await timers.database.reader.fetch("SELECT available_at, attempt FROM waiting_commands ORDER BY tenant_id")
    return [((row["available_at"] - timers.clock.now()) // 1000, row["attempt"]) for row in rows]


async def test_others_are_handled_beside_a_locked_row(
    timers: Timers, locks: LockedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the command on the locked row and those of its tenant behind it wait, in their order, until it is free."""
    calls = [f"call-{number}" for number in range(20)]
    schedule(timers, *calls)
    await timers.consume()
    async with locks.locked(LOCK_TIMER.format("call-7")):
        cancel(timers, *calls)
        schedule(timers, *calls, tenant="other")
        await timers.consume()
        assert timers.outcomes() == {"cancelled": 7, "scheduled": 40}
        schedule(timers, "behind")
        await timers.consume()
        assert timers.outcomes() == {"cancelled": 7, "scheduled": 40}
    await try_again(timers)
    assert timers.outcomes() == {"cancelled": 20, "scheduled": 41}
    reasons = [vars(each)["reason"] for each in caplog.records if each.name.startswith("timer_service.core.intake")]
    assert reasons
    assert all('in relation "timer_schedules"' in reason for reason in reasons)
    assert "the database is unavailable" not in caplog.text


async def test_a_lock_that_is_held_for_long(timers: Timers, locks: LockedPostgres) -> None:
    """The delays of a locked command grow to a minute. No attempt counts, and it is no dead letter."""
    schedule(timers, "call-1")
    await timers.consume()
    found = []
    async with locks.locked(LOCK_TIMER.format("call-1")):
        cancel(timers, "call-1")
        await timers.consume()
        for _ in range(12):
            ((delay, attempt),) = await waiting(timers)
            found.append((delay, attempt))
            await try_again(timers, delay)
    assert found == [(delay, 0) for delay in (1, 2, 4, 8, 16, 32, *[60] * 6)]
    await try_again(timers, 60)
    assert (timers.outcomes(), timers.broker.dead_letters) == ({"scheduled": 1, "cancelled": 1}, [])


async def test_how_long_commands_wait_for_locks(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a lock was met, all commands wait only briefly for locks for 10 s, and a blocked one also later."""
    seconds = [1000.0]
    monkeypatch.setattr("timer_service.core.intake.reader.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    are_brief: list[bool] = []
    is_locked = True

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        (row,) = await tx.fetch("SHOW lock_timeout")
        are_brief.append(row["lock_timeout"] == "10ms")
        if is_locked:
            raise DatabaseBlockedError("a lock")
        return await timers.handle(tx, commands, now)

    timers.read_with(handle)
    schedule(timers, "call-1")
    await timers.consume()
    is_locked = False
    for after in (9.0, 2.0):
        seconds[0] += after
        schedule(timers, "call-1", tenant=f"other-{after:.0f}")
        await timers.consume()
    await try_again(timers)
    assert are_brief == [False, True, True, False, True]


async def test_a_slow_statement(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A command whose statement reaches the time limit does not hold up other tenants, and is no outage."""
    monkeypatch.setattr(database_module, "STATEMENT_SECONDS", 0.3)

    async def handle(tx: Transaction, commands: Sequence[Command], now: int) -> Sequence[CommandResult]:
        if any(command.tenant == "slow" for command in commands):
            await tx.fetch("SELECT pg_sleep(60)")
        return await timers.handle(tx, commands, now)

    timers.read_with(handle)
    for tenant in ("acme", "slow", "other"):
        schedule(timers, "call-1", tenant=tenant)
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 2}
    assert await waiting(timers) == [(1, 0)]
    assert (timers.reader.health, timers.database.health) == (HEALTHY, HEALTHY)
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


async def no_hook(_messages: Sequence[Message]) -> None:
    """Do nothing before messages are published."""
