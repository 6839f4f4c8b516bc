"""New timers are inserted without a read. The results are those of the rules."""

import itertools
import math
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
from timer_service.core.ports import turns
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.timers import rules, store
from timer_service.timers.handler import handle
from timer_service.timers.messages import CancelTimer, CancelTimers, PlainTimer, RetryTimer, ScheduleTimer
from timer_service.timers.rules import Key, Timer


@pytest.fixture(autouse=True)
def unlimited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction takes a whole batch, also if the machine stops for longer than a transaction may apply commands."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", math.inf)


def schedule(call: str, sequence: int, trace: Trace | None = None, **more: Any) -> Command:
    payload = ScheduleTimer(tenant_id="acme", service_call_id=call, due_in=more.pop("due_in", 1000), **more)
    return command(payload, sequence, trace)


def command(payload: TenantPayload, sequence: int, trace: Trace | None = None) -> Command:
    correlation = None if trace is None else "correlated"
    return Command(f"c{sequence}", payload, Position(1, sequence), correlation, trace or Trace(), None, NOW)


def random_command(rng: random.Random, sequence: int) -> Command:
    call = f"call-{rng.randrange(8)}"
    kind = rng.randrange(10)
    trace = Trace("00-trace", "a=b") if rng.randrange(4) == 0 else None
    if kind < 3:
        data = rng.choice((None, '"x"', f'"{"x" * 1000}"'))
        payload = PlainTimer("acme", call, NOW + rng.choice((1, 2)), None, data, rng.choice((None, "a", "b")))
        return Command(f"c{sequence}", payload, Position(1, sequence), None, trace or Trace(), None)
    if kind < 6:
        more = {"data": rng.choice((None, {"n": 1}, "x" * 2000))} if rng.randrange(2) else {}
        return schedule(
            call,
            sequence,
            trace,
            due_in=rng.choice((1, 2)),
            late_by=rng.choice((None, 5)),
            topic=rng.choice((None, "a", "b")),
            **more,
        )
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
        async with sqlite.transaction() as tx:
            results = await handle(tx, batch, NOW, quotas=Quotas())
        assert [each.name for each in results] == expected
        assert await store.find(sqlite.reader, timers) == timers


# Limits


LIMITED = Limits(pending_timers=25, stored_data=12_000)


def schedules(rng: random.Random, calls: Iterator[int], sequences: Iterator[int]) -> list[Command]:
    """Return a batch of plain commands of two tenants, on different timers, of which most do not exist yet."""
    payloads = {}
    for _ in range(rng.randrange(1, 9)):
        tenant, call = rng.choice(("acme", "globex")), f"call-{next(calls) if rng.randrange(3) else rng.randrange(20)}"
        data = rng.choice((None, '"x"', f'"{"x" * 1500}"'))
        payloads[tenant, call] = PlainTimer(tenant, call, NOW + rng.randrange(-1, 9) * 1000, None, data)
    return [Command("", payload, Position(1, next(sequences)), None, Trace(), None) for payload in payloads.values()]


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


class _RolledBackError(Exception):
    """Ends a transaction without a commit."""
