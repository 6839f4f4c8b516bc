"""The loops of an instance: which there are, and which of them the commands of a slice wake."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.wiring import make_parts
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.slices import SLICES, Workers, routes
from timer_service.config import Config
from timer_service.core.due.loop import Wakeups
from timer_service.core.limits.quotas import Quotas
from timer_service.metrics import Metrics

WOKEN = {
    "timers": {"timers"},
    "signals": {"firings", "evaluation"},
    "schedules": {"schedules", "outbox"},
    "workflows": {"workflow-deadlines", "workflow-keys", "outbox"},
    "runs": {"sweep", "announcements", "outbox"},
    "events": {"outbox"},
}
WAKE_AT = 12_345


def names(sqlite: SqliteDatabase, broker: MemoryBroker, **settings: Any) -> set[str]:
    """Return the names of the loops of an instance."""
    parts = make_parts(sqlite, broker, ManualClock(), Metrics(CollectorRegistry()))
    return {loop.name for loop in Workers(Config.model_validate(settings), parts).loops}


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ("signals_enabled", {"firings", "evaluation"}),
        ("schedules_enabled", {"schedules", "backfills"}),
        ("workflows_enabled", {"workflow-deadlines", "workflow-keys"}),
        ("runs_enabled", {"sweep", "announcements"}),
    ],
)
def test_loops_of_a_disabled_slice(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, setting: str, missing: set[str]
) -> None:
    """A disabled slice has no loops except its retention."""
    assert names(sqlite, memory_broker) - names(sqlite, memory_broker, **{setting: False}) == missing


async def test_wakes_of_each_route(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> None:
    """Commands of a slice wake exactly the loops that may have new work after them, or the one that is named."""
    woken: set[tuple[str, int]] = set()
    listeners = {name: partial(add, woken, name) for name in names(sqlite, memory_broker)}
    wakeups = Wakeups(memory_broker, ManualClock(), timedelta(seconds=5), [], alone=True, listeners=listeners)
    for slice_, route in zip(SLICES, routes(Config().enabled, wakeups, Quotas(), ignore), strict=True):
        assert route.payloads == slice_.commands
        for named, expected in ((None, WOKEN[slice_.name]), ("cancellations", {"cancellations"})):
            woken.clear()
            await route.wake(WAKE_AT, named)
            assert woken == {(each, WAKE_AT) for each in expected}


def add(woken: set[tuple[str, int]], name: str, at: int) -> None:
    woken.add((name, at))


def ignore(_lane: object, _at: int) -> None:
    """Offer no row to workers."""
