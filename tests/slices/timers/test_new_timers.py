"""New timers are inserted without a read. The results are those of reading first."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.harness.clock import NOW
from tests.harness.locks import wait_for_lock
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Parameters, Row, Transaction
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.timers.handler import handle
from timer_service.timers.messages import CancelTimer, CancelTimers, RetryTimer, ScheduleTimer

READING_FIRST = Quotas(TenantLimits(default=Limits(pending_timers=1_000_000)))
"""With limits, nothing is inserted before it is read."""
COLUMNS = (
    "service_call_id, state, due_at, data, correlation_id, causation_id, traceparent, expires_at, large_data, "
    "registered_at, available_at, cancelled_at, confirmed_at"
)


class Watched:
    """A transaction that remembers which statements read the timers."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self.reads: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> Sequence[Row]:
        if "FROM /* each of many */ timer_schedules" in sql:
            self.reads.append(len(many))
        return await self._inner.fetch_each(sql, many)


def schedule(call: str, sequence: int, *, tenant: str = "acme", trace: Trace | None = None, **more: Any) -> Command:
    payload = ScheduleTimer(tenant_id=tenant, service_call_id=call, due_in=more.pop("due_in", 1000), **more)
    return command(payload, sequence, trace)


def command(payload: TenantPayload, sequence: int, trace: Trace | None = None) -> Command:
    correlation = None if trace is None else "correlated"
    return Command(f"c{sequence}", payload, Position(1, sequence), correlation, trace or Trace(), None, NOW)


async def applied(
    database: SqliteDatabase, commands: Sequence[Command], quotas: Quotas
) -> tuple[Sequence[CommandResult | None], list[int]]:
    async with database.transaction() as tx:
        watched = Watched(tx)
        results = await handle(watched, commands, NOW, quotas=quotas, monotonic=lambda: 0)  # time does not end it
        return results, watched.reads


def random_command(rng: random.Random, sequence: int, tenant: str) -> Command:
    call = f"call-{rng.randrange(8)}"
    kind = rng.randrange(10)
    trace = Trace("00-trace", "a=b") if rng.randrange(4) == 0 else None
    if kind < 6:
        data = rng.choice((None, {"n": 1}, "x" * 2000))
        more = {"data": data} if rng.randrange(2) else {}
        return schedule(
            call, sequence, tenant=tenant, trace=trace, due_in=rng.choice((1, 2)), late_by=rng.choice((None, 5)), **more
        )
    if kind < 8:
        return command(CancelTimer(tenant_id=tenant, service_call_id=call), sequence)
    if kind < 9:
        return command(RetryTimer(tenant_id=tenant, service_call_id=call), sequence)
    return command(CancelTimers(tenant_id=tenant, prefix=call), sequence)


async def rows(database: SqliteDatabase, tenant: str) -> list[tuple[Any, ...]]:
    sql = f"SELECT {COLUMNS}, position_sequence FROM timer_schedules WHERE tenant_id = :tenant ORDER BY 1"
    found: list[Any] = list(await database.reader.fetch(sql, {"tenant": tenant}))
    return [tuple(row) for row in found]


@pytest.mark.parametrize("seed", range(8))
async def test_the_results_are_those_of_reading_first(sqlite: SqliteDatabase, seed: int) -> None:
    """Batches of all commands end as if every timer were read before it is written."""
    rng = random.Random(seed)
    sequence = 0
    for _ in range(12):
        drawn = [(rng.random(), sequence + number) for number in range(1, rng.randrange(2, 9))]
        sequence += len(drawn)
        first = [random_command(random.Random(each), at, "first") for each, at in drawn]
        reading = [random_command(random.Random(each), at, "reading") for each, at in drawn]
        at_once, _ = await applied(sqlite, first, Quotas())
        expected, _ = await applied(sqlite, reading, READING_FIRST)
        assert at_once == expected
    assert await rows(sqlite, "first") == await rows(sqlite, "reading") != []


async def test_new_timers_are_not_read(sqlite: SqliteDatabase) -> None:
    """A batch reads only the timers that exist, and those whose first command is no ScheduleTimer."""
    results, reads = await applied(sqlite, [schedule(f"call-{number}", number) for number in range(1, 121)], Quotas())
    assert [each and each.name for each in results] == ["scheduled"] * 120
    assert reads == []
    batch = [
        schedule("call-7", 201, due_in=2000),
        schedule("new", 202),
        schedule("twice", 203),
        schedule("twice", 204),
        schedule("twice", 205, due_in=2000),
        command(CancelTimer(tenant_id="acme", service_call_id="other"), 206),
        schedule("other", 207),
        schedule("gone", 208),
        command(CancelTimer(tenant_id="acme", service_call_id="gone"), 209),
    ]
    results, reads = await applied(sqlite, batch, Quotas())
    names = ["rescheduled", "scheduled", "scheduled", "unchanged", "rescheduled"]
    names += ["not_found", "scheduled", "scheduled", "cancelled"]
    assert [each and each.name for each in results] == names
    assert reads == [2]


async def test_time_that_is_over_before_anything_was_inserted(sqlite: SqliteDatabase) -> None:
    """If all timers exist and the time is over, one command is applied all the same. The others are deferred."""
    await applied(sqlite, [schedule("call-1", 1), schedule("call-2", 2)], Quotas())
    seconds = iter(range(100))
    async with sqlite.transaction() as tx:
        batch = [schedule("call-1", 3), schedule("call-2", 4)]
        results = await handle(tx, batch, NOW, quotas=Quotas(), monotonic=lambda: next(seconds))
    assert [each and each.name for each in results] == ["unchanged", None]


async def test_time_that_is_over_before_the_second_command(sqlite: SqliteDatabase) -> None:
    """If the time is over after a timer was inserted, its second command is deferred. The next batch applies it."""
    batch = [schedule("call-1", 1), schedule("call-1", 2, due_in=2000), schedule("call-2", 3)]
    seconds = iter([0.0, 1.0])
    async with sqlite.transaction() as tx:
        results = await handle(tx, batch, NOW, quotas=Quotas(), monotonic=lambda: next(seconds, 1.0))
    assert [each and each.name for each in results] == ["scheduled", None, None]
    results, _ = await applied(sqlite, batch[1:], Quotas())
    assert [each and each.name for each in results] == ["rescheduled", "scheduled"]


async def test_time_that_is_over_before_a_timer_that_exists(sqlite: SqliteDatabase) -> None:
    """If the time is over after a timer was inserted, no other timer is locked: its command is deferred."""
    await applied(sqlite, [schedule("call-2", 1)], Quotas())
    batch = [schedule("call-1", 2), schedule("call-2", 3, due_in=2000)]
    seconds = iter([0.0, 1.0])
    async with sqlite.transaction() as tx:
        watched = Watched(tx)
        results = await handle(watched, batch, NOW, quotas=Quotas(), monotonic=lambda: next(seconds, 1.0))
    assert [each and each.name for each in results] == ["scheduled", None]
    assert watched.reads == []


class Paused:
    """A transaction that waits for an event after each insert of timers."""

    def __init__(self, inner: Transaction, may_go_on: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._may_go_on = may_go_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        returned = await self._inner.insert(sql, rows)
        await self._may_go_on()
        return returned


async def test_two_instances_reschedule_new_timers(postgres: PostgresDatabase) -> None:
    """A batch that reschedules a timer it has scheduled locks it in the order of the keys, so it meets no deadlock."""
    has_inserted = asyncio.Event()

    async def wait_for_the_other() -> None:
        has_inserted.set()
        await wait_for_lock(postgres)

    async def handle_first() -> Sequence[CommandResult | None]:
        batch = [schedule("a", 1), schedule("a", 2, due_in=2000), schedule("b", 3)]
        async with postgres.transaction() as tx:
            return await handle(Paused(tx, wait_for_the_other), batch, NOW, quotas=Quotas())

    async def handle_second() -> Sequence[CommandResult | None]:
        await has_inserted.wait()
        async with postgres.transaction() as tx:
            return await handle(tx, [schedule("a", 4), schedule("b", 5, due_in=2000)], NOW, quotas=Quotas())

    first, second = await asyncio.gather(handle_first(), handle_second())
    assert [each and each.name for each in first] == ["scheduled", "rescheduled", "scheduled"]
    assert [each and each.name for each in second] == ["rescheduled", "rescheduled"]
