"""Retention, row counts and the constraints of the schema."""

from datetime import timedelta
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.signals import BLOCKED, Signals
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.ports.database import Database
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.service.upkeep import Retention
from timer_service.signals.firing_store import COUNTED, FIRINGS
from timer_service.signals.store import delete_settled

WAITING: dict[str, Any] = {"workItemId": "item-1", "triggerKind": "event", "triggerSpec": BLOCKED}


@pytest.fixture
def signals(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Signals:
    """The signals slice on each store in turn."""
    return Signals(store, memory_broker, clock)


async def run_retention(signals: Signals) -> int:
    """Run one pass of retention. Return the number of deleted rows."""
    return (await Retention(signals.database, timedelta(days=7), delete_settled).tick(signals.clock.now())).done


# Retention


async def test_retention(signals: Signals) -> None:
    """Settled rows are deleted after the retention time. Waiting signals and tasks of fired signals stay."""
    for name in ("fired", "resolved", "waits"):
        await signals.create(name, f"item of {name}")
    await signals.remind(iso(NOW), "reminder")
    for name in ("fired", "resolved"):
        await signals.transition(item=f"item of {name}")
    await signals.run()
    await signals.about("Resolve", "resolved")
    retention = Retention(signals.database, timedelta(days=7), delete_settled)
    early = (await retention.tick(after(days=7))).done
    deleted = (await retention.tick(after(days=7, milliseconds=1))).done
    left = [row["signal_id"] for row in await signals.rows("work_signals")]
    assert (early, deleted, left) == (0, 5, ["fired", "reminder", "waits"])
    assert [row["signal_id"] for row in await signals.rows("work_signal_firings")] == ["fired"]
    assert await signals.rows("work_item_events") == []


async def test_retention_of_many_tasks(signals: Signals) -> None:
    """A pass deletes about 500 tasks, the same number of each signal. A signal goes with its last task."""
    counts = {"many": 1200, "few": 2, "none": 0}
    for name in counts:
        await signals.create(name, f"item of {name}")
        await signals.about("Cancel", name)
    for name, count in counts.items():
        for number in range(count):
            await signals.sql(
                "INSERT INTO work_signal_firings (tenant_id, firing_id, signal_id, defined_epoch, defined_sequence,"
                " dedupe_key, work_item_id, status, due_at, created_at, settled_at, position_epoch, position_sequence)"
                f" VALUES ('acme', '{name}-{number}', '{name}', 1, 1, '{number}', 'item of {name}', 'enqueued', {NOW},"
                f" {NOW}, {NOW}, 1, 2)"
            )
    signals.clock.advance(days=7, milliseconds=1)
    passes = []
    while deleted := await run_retention(signals):
        tasks = await signals.rows("work_signal_firings")
        passes.append((deleted, [row["signal_id"] for row in await signals.rows("work_signals")], len(tasks)))
    assert passes == [
        (167 + 2 + 2, ["many"], 1033),
        (500, ["many"], 533),
        (500, ["many"], 33),
        (33 + 1, [], 0),
    ]


async def test_commands_without_effect_leave_no_rows(signals: Signals) -> None:
    """A command on a signal that does not exist adds no row, and one on an ended signal does not delay its deletion."""
    await signals.create("ended")
    await signals.about("Cancel", "ended")
    signals.clock.advance(days=6)
    await signals.about("Resolve", "ended")
    await signals.about("Pause", "unknown")
    signals.clock.advance(days=1, milliseconds=1)
    assert (await run_retention(signals), await signals.rows("work_signals")) == (1, [])


async def test_cause_counts_once_after_the_retention(signals: Signals) -> None:
    """A transition that is sent again after it was deleted does not fire its signal again while the task stays."""
    await signals.create()
    await signals.transition(eventId="event-1")
    await signals.run()
    await signals.about("Activate")
    signals.clock.advance(days=7, milliseconds=1)
    deleted = await run_retention(signals)
    await signals.transition(eventId="event-1")
    await signals.run()
    assert (deleted, signals.fired(), await signals.status()) == (1, ["signal-1"], "active")
    assert len(await signals.tasks_of()) == 1


# Row counts


async def test_row_counts(signals: Signals) -> None:
    """The gauges show pending firings, failed firings and unevaluated transitions."""
    off = Signals(signals.database, signals.broker, signals.clock, enabled=False)
    await off.transition()
    await signals.remind(iso(NOW - 2000), "overdue")
    await signals.remind(iso(after(days=1)), "waits")
    await signals.remind(iso(NOW), "cancelled")
    await signals.about("Cancel", "cancelled")
    metrics: MetricsPort = signals.metrics
    await RowCounts(signals.database, metrics, counted=COUNTED, overdue={FIRINGS.name: overdue_sql(FIRINGS)}).tick(NOW)
    assert signals.metrics.counts == {
        ("work_signal_firings", "pending"): 2,
        ("work_signal_firings", "failed"): 1,
        ("work_item_events", "unevaluated"): 1,
    }
    assert signals.metrics.overdues == {"work_signal_firings": [(1, 2.0)]}


# Schema


FORBIDDEN = {
    "work_signal_firings": [
        "available_at = NULL",
        "available_at = due_at - 1",
        "status = 'failed'",
        "status = 'enqueued', available_at = NULL, settled_at = due_at - 1",
        "lease_token = 'token'",
        "status = 'done'",
        "attempt = -1",
        "position_epoch = -1",
    ],
    "work_signals": [
        "status = 'fired'",
        "status = 'cancelled'",
        "ended_at = 1",
        "status = 'done'",
        "since_epoch = -1",
        "trigger_kind = 'cron'",
    ],
}


async def test_schema_refuses(signals: Signals) -> None:
    """The CHECK constraints reject rows that would break a guarantee."""
    await signals.create()
    await signals.transition()
    for table, changes in FORBIDDEN.items():
        for change in changes:
            with pytest.raises(Exception, match=r"(?i)check constraint"):
                await signals.sql(f"UPDATE {table} SET {change}")
