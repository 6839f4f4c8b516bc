"""Retention and row counts."""

from datetime import timedelta

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import Signals
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.ports.database import Database
from timer_service.core.service.upkeep import Retention
from timer_service.signals import SLICE

RETENTION_ENDS = after(days=7, milliseconds=1)


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """The signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


async def run_retention(signals: Signals, now: int = RETENTION_ENDS) -> int:
    """Run one pass of retention. Return the number of deleted rows."""
    assert SLICE.delete_settled is not None
    return (await Retention(signals.database, timedelta(days=7), SLICE.delete_settled).tick(now)).done


async def test_retention(signals: Signals) -> None:
    """Settled rows are deleted after the retention time. Waiting signals and tasks of fired signals stay.

    A transition that was not matched yet stays too.
    """
    for name in ("fired", "refused", "resolved", "waits"):
        await signals.create(name, f"item of {name}")
    await signals.remind(iso(NOW), "reminder")
    for name in ("fired", "refused", "resolved"):
        await signals.transition(item=f"item of {name}")
    await signals.about("Pause", "refused")
    await signals.run()
    await Signals(signals.database, signals.broker, signals.clock, enabled=False).transition(eventId="unmatched")
    await signals.about("Resolve", "resolved")
    signals.clock.advance(days=6)
    await signals.about("Resolve", "resolved")  # does not delay its deletion
    early, deleted = await run_retention(signals, RETENTION_ENDS - 1), await run_retention(signals)
    left = [row["signal_id"] for row in await signals.rows("work_signals")]
    assert (early, deleted, left) == (0, 7, ["fired", "refused", "reminder", "waits"])
    assert [row["signal_id"] for row in await signals.rows("work_signal_firings")] == ["fired"]
    assert [row["event_id"] for row in await signals.rows("work_item_events")] == ["unmatched"]


async def test_retention_of_many_tasks(signals: Signals) -> None:
    """A pass deletes a bounded number of tasks, some of each signal. A signal goes with its last task."""
    counts = {"many": 1200, "few": 2, "none": 0}
    for name, count in counts.items():
        await signals.create(name, f"item of {name}")
        await signals.about("Cancel", name)
        for number in range(count):
            await signals.sql(
                "INSERT INTO work_signal_firings (tenant_id, firing_id, signal_id, defined_epoch, defined_sequence,"
                " dedupe_key, work_item_id, status, due_at, created_at, settled_at, position_epoch, position_sequence)"
                f" VALUES ('acme', '{name}-{number}', '{name}', 1, 1, '{number}', 'item of {name}', 'enqueued', {NOW},"
                f" {NOW}, {NOW}, 1, 2)"
            )
    passes = []
    while deleted := await run_retention(signals):
        passes.append((deleted <= 510, [row["signal_id"] for row in await signals.rows("work_signals")]))
    assert passes == [(True, ["many"])] * 3 + [(True, [])]
    assert await signals.rows("work_signal_firings") == []


async def test_cause_counts_once_after_the_retention(signals: Signals) -> None:
    """A transition that is sent again after it was deleted does not fire its signal again while the task stays."""
    await signals.create()
    await signals.transition(eventId="event-1")
    await signals.run()
    await signals.about("Activate")
    deleted = await run_retention(signals)
    await signals.transition(eventId="event-1")
    await signals.run()
    assert (deleted, signals.fired(), await signals.status()) == (1, ["signal-1"], "active")
    assert len(await signals.tasks_of()) == 1


async def test_row_counts(signals: Signals) -> None:
    """The gauges show pending firings, failed firings and unevaluated transitions."""
    off = Signals(signals.database, signals.broker, signals.clock, enabled=False)
    await off.transition()
    await signals.remind(iso(NOW - 2000), "overdue")
    await signals.remind(iso(after(days=1)), "waits")
    await signals.remind(iso(NOW), "cancelled")
    await signals.about("Cancel", "cancelled")
    (firings,) = SLICE.due
    overdue = {firings.name: overdue_sql(firings)}
    await RowCounts(signals.database, signals.metrics, counted=SLICE.counted, overdue=overdue).tick(NOW)
    assert signals.metrics.counts == {
        ("work_signal_firings", "pending"): 2,
        ("work_signal_firings", "failed"): 1,
        ("work_item_events", "unevaluated"): 1,
    }
    assert signals.metrics.overdues == {"work_signal_firings": [(1, 2.0)]}
