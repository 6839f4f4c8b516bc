"""New timers are inserted without a read. The results are those of the rules."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.harness.clock import NOW
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Parameters, Row, Transaction
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.timers import rules, store
from timer_service.timers.handler import handle
from timer_service.timers.messages import CancelTimer, CancelTimers, PlainTimer, RetryTimer, ScheduleTimer
from timer_service.timers.rules import Key, Timer


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


def schedule(call: str, sequence: int, trace: Trace | None = None, **more: Any) -> Command:
    payload = ScheduleTimer(tenant_id="acme", service_call_id=call, due_in=more.pop("due_in", 1000), **more)
    return command(payload, sequence, trace)


def command(payload: TenantPayload, sequence: int, trace: Trace | None = None) -> Command:
    correlation = None if trace is None else "correlated"
    return Command(f"c{sequence}", payload, Position(1, sequence), correlation, trace or Trace(), None, NOW)


async def applied(database: SqliteDatabase, commands: Sequence[Command]) -> tuple[Sequence[CommandResult], list[int]]:
    async with database.transaction() as tx:
        watched = Watched(tx)
        results = await handle(watched, commands, NOW, quotas=Quotas())
        return results, watched.reads


def random_command(rng: random.Random, sequence: int) -> Command:
    call = f"call-{rng.randrange(8)}"
    kind = rng.randrange(10)
    if kind < 3:
        payload = PlainTimer("acme", call, NOW + rng.choice((1, 2)), None, rng.choice((None, '"x"')))
        return Command(f"c{sequence}", payload, Position(1, sequence), None, Trace(), None)
    if kind < 6:
        trace = Trace("00-trace", "a=b") if rng.randrange(4) == 0 else None
        more = {"data": rng.choice((None, {"n": 1}, "x" * 2000))} if rng.randrange(2) else {}
        return schedule(call, sequence, trace, due_in=rng.choice((1, 2)), late_by=rng.choice((None, 5)), **more)
    if kind < 8:
        return command(CancelTimer(tenant_id="acme", service_call_id=call), sequence)
    if kind < 9:
        return command(RetryTimer(tenant_id="acme", service_call_id=call), sequence)
    return command(CancelTimers(tenant_id="acme", prefix=call), sequence)


def by_the_rules(timers: dict[Key, Timer], commands: Sequence[Command]) -> list[str]:
    """Apply commands to `timers`, one after the other. Return their outcomes."""
    outcomes = []
    for each in commands:
        if isinstance(each.payload, CancelTimers):
            outcomes.append("cancelling")
            continue
        key = rules.key_of(each)
        timer, outcome = rules.apply(timers.get(key), key, each, NOW)
        if timer is not None:
            timers[key] = timer
        outcomes.append(outcome)
    return outcomes


@pytest.mark.parametrize("seed", range(8))
async def test_the_results_are_those_of_the_rules(sqlite: SqliteDatabase, seed: int) -> None:
    """A batch of any commands ends as if each timer were read before each of its commands."""
    rng = random.Random(seed)
    timers: dict[Key, Timer] = {}
    sequences = itertools.count(1)
    for _ in range(12):
        batch = [random_command(rng, next(sequences)) for _ in range(rng.randrange(2, 9))]
        expected = by_the_rules(timers, batch)
        results, _ = await applied(sqlite, batch)
        assert [each.name for each in results] == expected
        assert await store.find(sqlite.reader, timers) == timers


async def test_new_timers_are_not_read(sqlite: SqliteDatabase) -> None:
    """A batch reads only the timers that exist, and those with commands behind or instead of a first ScheduleTimer."""
    results, reads = await applied(sqlite, [schedule(f"call-{number}", number) for number in range(1, 121)])
    assert [each.name for each in results] == ["scheduled"] * 120
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
    results, reads = await applied(sqlite, batch)
    names = ["rescheduled", "scheduled", "scheduled", "unchanged", "rescheduled"]
    names += ["not_found", "scheduled", "scheduled", "cancelled"]
    assert [each.name for each in results] == names
    assert reads == [4]


# Plain commands


def plain(call: str, sequence: int, **more: Any) -> Command:
    payload = PlainTimer("acme", call, NOW, None, None)
    return Command(f"c{sequence}", payload, Position(1, sequence), None, Trace(), None)._replace(**more)


@pytest.mark.parametrize("data", [None, "1", "x" * 1000, "x" * 1001])
@pytest.mark.parametrize("more", [{}, {"correlation_id": "order"}, {"trace": Trace("00-trace", "a=b")}])
def test_a_plain_row_is_that_of_the_rules(data: str | None, more: dict[str, Any]) -> None:
    """The row of a plain command is that of the timer that the rules make of it."""
    payload = PlainTimer("acme", "call-1", NOW + 5, None, data)
    given = plain("call-1", 1, payload=payload, **more)
    timer = rules.new_timer(Key("acme", "call-1"), given, NOW)
    row = store.plain_row(given, payload, NOW + 5, rules.event_id(timer.key, NOW + 5, given.position), NOW)
    assert row == store.new_row(timer)


async def test_a_batch_with_timers_that_exist(sqlite: SqliteDatabase) -> None:
    """The new timers of a plain batch are added, and the commands on the others are applied to what is there."""
    async with sqlite.transaction() as tx:
        await handle(tx, [plain("b", 1)], NOW, quotas=Quotas())
        results = await handle(tx, [plain("a", 2), plain("b", 3), plain("c", 4)], NOW, quotas=Quotas())
    assert [each.name for each in results] == ["scheduled", "unchanged", "scheduled"]


# Limits


LIMITED = Limits(pending_timers=25, stored_data=12_000)


def schedules(rng: random.Random, calls: Iterator[int], sequences: Iterator[int]) -> list[Command]:
    """Return a batch of plain commands of two tenants, on different timers, of which most do not exist yet."""
    payloads = {}
    for _ in range(rng.randrange(1, 9)):
        tenant, call = rng.choice(("acme", "globex")), f"call-{next(calls) if rng.randrange(3) else rng.randrange(20)}"
        data = rng.choice((None, '"x"', f'"{"x" * 1500}"'))
        payloads[tenant, call] = PlainTimer(tenant, call, NOW + rng.randrange(-1, 9) * 1000, None, data)
    return [plain("", next(sequences), payload=payload) for payload in payloads.values()]


@pytest.mark.parametrize("seed", range(4))
async def test_limits_of_a_batch_are_those_of_its_commands(sqlite: SqliteDatabase, seed: int) -> None:
    """A plain batch ends as its commands one by one, also while its tenants reach their limits and get room again."""
    rng = random.Random(seed)
    calls, sequences, seconds = itertools.count(20), itertools.count(1), itertools.count(0, 1000)
    quotas = Quotas(TenantLimits(default=LIMITED), monotonic=lambda: next(seconds))
    outcomes = Counter[str]()
    for now in range(NOW, NOW + 8000, 200):
        batch = schedules(rng, calls, sequences)
        one_by_one: list[CommandResult] = []
        with suppress(_RolledBackError):
            async with sqlite.transaction() as tx:
                for each in batch:
                    one_by_one += await handle(tx, [each], now, quotas=Quotas(TenantLimits(default=LIMITED)))
                raise _RolledBackError
        async with sqlite.transaction() as tx:
            together = await handle(tx, batch, now, quotas=quotas)
        assert _shown(together) == _shown(one_by_one)
        outcomes.update(each.name for each in together)
    assert min(outcomes["scheduled"], outcomes["over_quota"]) > 10


def _shown(results: Sequence[CommandResult]) -> list[object]:
    return [(each.name, each.wake_at, each.view and each.view()) for each in results]


async def test_what_takes_no_room(sqlite: SqliteDatabase) -> None:
    """Timers that exist already, or are due, take no room of a limit, so the rows are not counted again for them."""
    quotas = Quotas(TenantLimits(default=LIMITED), monotonic=lambda: 0)
    left = []
    for now in (NOW - 1, NOW - 1, NOW):
        async with sqlite.transaction() as tx:
            await handle(tx, [plain("a", now), plain("b", now), plain(f"new-{now}", now)], now, quotas=quotas)
        left.append(quotas.rooms["acme", "pending_timers"].left)
    assert left == [22, 22, 22]


class _RolledBackError(Exception):
    """Ends a transaction without a commit."""
