"""The loops of an instance: which there are, which commands wake them, and what they recover at the start."""

import re
from datetime import timedelta
from typing import NoReturn
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.builders import scheduled
from tests.harness.clock import NOW, ManualClock
from tests.harness.timers import put_timers
from tests.harness.wiring import VISIBILITY_TIMEOUT, make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES, Workers, routes
from timer_service.config import Config
from timer_service.core.due.lease import Lease, LeasedTable
from timer_service.core.due.loop import Loop, Wakeups
from timer_service.core.events.outbox import DEAD_LETTERS, OUTBOX
from timer_service.core.limits.quotas import Quotas
from timer_service.metrics import Metrics
from timer_service.timers.store import TIMERS

ALL = {
    *("timers", "cancellations", "firings", "evaluation", "schedules", "backfills", "outbox", "sweep"),
    *("announcements", "dead-letters", "event-limits"),
    *("timers-retention", "signals-retention", "schedules-retention", "workflows-retention", "runs-retention"),
    *("events-retention", "workflow-deadlines", "row-counts"),
}
UPKEEP = {each for each in ALL if each.endswith("-retention")} | {"row-counts"}
"""The loops that only clean up and count."""
WOKEN = {
    "timers": {"timers"},
    "signals": {"firings", "evaluation"},
    "schedules": {"schedules", "outbox"},
    "workflows": {"workflow-deadlines", "outbox"},
    "runs": {"sweep", "announcements", "outbox"},
    "events": {"outbox"},
}
EVENT = """
INSERT INTO outbox (tenant_id, event_id, message, body, added_at, ordinal, state, available_at)
VALUES ('acme', 'event-1', 'run-completed', '{}', :now, 0, 'Waiting', :now)
"""
WAKE_AT = 12_345


def build_workers(sqlite: SqliteDatabase, broker: MemoryBroker, config: Config) -> Workers:
    return Workers(config, make_parts(sqlite, broker, ManualClock(), Metrics(CollectorRegistry())))


@pytest.fixture
def workers(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> Workers:
    return build_workers(sqlite, memory_broker, Config(visibility_timeout=VISIBILITY_TIMEOUT))


def names(workers: Workers) -> set[str]:
    return {loop.name for loop in workers.loops}


def test_loops(workers: Workers) -> None:
    """An instance has the loops that docs/operations.md lists, each once."""
    assert names(workers) == ALL
    assert len(workers.loops) == len(ALL)


def test_loop_names(workers: Workers) -> None:
    """A loop's name has no spaces: it is a label of metrics and a token of subjects."""
    assert [name for name in names(workers) if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)] == []


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ("signals_enabled", {"firings", "evaluation"}),
        ("schedules_enabled", {"schedules", "backfills"}),
        ("workflows_enabled", {"workflow-deadlines"}),
        ("runs_enabled", {"sweep", "announcements"}),
    ],
)
def test_loops_of_a_disabled_slice(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, setting: str, missing: set[str]
) -> None:
    """A disabled slice has no loops except its retention."""
    assert names(build_workers(sqlite, memory_broker, Config.model_validate({setting: False}))) == ALL - missing


def test_polling_intervals(workers: Workers) -> None:
    """Loops with work that commands add poll at the configured interval, the others less often."""
    polls = {loop.name: timedelta(milliseconds=loop._poll_ms) for loop in workers.loops}
    often = Config().polling_interval
    rarely = {name: timedelta(minutes=1) for name in ALL if name.endswith("-retention")}
    rarely["row-counts"] = timedelta(seconds=15)
    assert polls == {**dict.fromkeys(ALL, often), **rarely}


async def test_wakes_of_each_route(workers: Workers, memory_broker: MemoryBroker) -> None:
    """Commands of a slice wake exactly the loops that may have new work after them."""
    wakeups = Wakeups(memory_broker, ManualClock(), timedelta(seconds=5), workers.loops, alone=True)
    found = routes(Config().enabled, wakeups, Quotas(), lambda _lane, _at: None)
    assert [route.payloads for route in found] == [each.commands for each in SLICES]
    woken: dict[str, set[str]] = {}
    for slice_, route in zip(SLICES, found, strict=True):
        await route.wake(WAKE_AT, None)
        woken[slice_.name] = {loop.name for loop in workers.loops if take_wake(loop)}
    assert woken == WOKEN


async def test_wake_of_one_loop(workers: Workers, memory_broker: MemoryBroker) -> None:
    """A command can wake one other loop instead of those of its slice."""
    wakeups = Wakeups(memory_broker, ManualClock(), timedelta(seconds=5), workers.loops, alone=True)
    route = routes(Config().enabled, wakeups, Quotas(), lambda _lane, _at: None)[0]
    await route.wake(WAKE_AT, "cancellations")
    assert {loop.name for loop in workers.loops if take_wake(loop)} == {"cancellations"}


def take_wake(loop: Loop) -> bool:
    """Return whether the loop was woken for `WAKE_AT`, and forget the wake."""
    woken = loop._next_at == WAKE_AT
    loop._next_at = float("inf")
    return woken


@pytest.mark.parametrize("failing", sorted(ALL))
async def test_health_of_the_workers(workers: Workers, failing: str) -> None:
    """The workers are down while a loop fails that fires or publishes. The others only clean up and count."""
    (loop,) = [each for each in workers.loops if each.name == failing]
    before = workers.health

    async def fail(_now: int) -> NoReturn:
        loop.stop()
        raise RuntimeError("a surprise")

    with patch.object(loop._worker, "tick", fail):
        await loop.run()
    fires = failing not in UPKEEP
    reason = f"loop {failing} fails: RuntimeError: a surprise" if fires else None
    assert (before.reason, workers.health.reason) == (None, reason)


@pytest.mark.parametrize("table", [TIMERS, OUTBOX], ids=lambda table: table.name)
async def test_recovery_at_the_start(workers: Workers, sqlite: SqliteDatabase, table: LeasedTable) -> None:
    """On SQLite, the rows that a dead process had claimed can be claimed at once: its leases end at the start."""
    async with sqlite.transaction() as tx:
        await put_timers(tx, [scheduled("call-1", NOW)])
        await tx.execute(EVENT, {"now": NOW})
    lease = Lease(table, VISIBILITY_TIMEOUT)
    claimed: list[int] = []
    for recovers in (False, False, True):
        if recovers:
            await workers.recover()
        async with sqlite.transaction() as tx:
            claimed.append(len(await lease.claim(tx, NOW, 10)))
    assert claimed == [1, 0, 1]


def test_all_leased_tables_are_tested() -> None:
    """The recovery is tested for the tables of all slices."""
    assert {table for each in SLICES for table in each.leased} == {TIMERS, OUTBOX, DEAD_LETTERS}
