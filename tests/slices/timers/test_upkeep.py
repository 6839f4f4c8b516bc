from datetime import timedelta
from typing import Any

import pytest

from tests.harness.builders import in_state, schedule_timer, scheduled
from tests.harness.clock import NOW, ManualClock, after
from tests.harness.metrics import RecordingMetrics
from tests.harness.timers import Timers, put_timers
from timer_service.core.due.loop import Pass
from timer_service.core.due.row_counts import RowCounts, overdue_sql
from timer_service.core.ports.database import Database
from timer_service.core.service.upkeep import Retention
from timer_service.timers import SLICE
from timer_service.timers import store as timer_store
from timer_service.timers.messages import State

RETENTION = timedelta(days=7)
EXPIRED = after(days=7, milliseconds=1)
"""The first instant at which a row that was settled at NOW is older than the retention time."""
BATCH = 500


def retention_of(database: Database) -> Retention:
    assert SLICE.delete_settled is not None
    return Retention(database, RETENTION, SLICE.delete_settled)


async def remaining(timers: Timers) -> list[str]:
    rows = await timers.database.reader.fetch("SELECT service_call_id FROM timer_schedules ORDER BY service_call_id")
    return [row["service_call_id"] for row in rows]


async def test_retention(timers: Timers) -> None:
    """Settled timers are deleted exactly one millisecond after the retention time. Others stay, however old they are.

    The time counts from the firing or the cancel. A later command does not extend it.
    """
    await timers.fail("failed")
    timers.clock.set(NOW)
    await timers.schedule("fired", 0, data="x" * 2000)
    await timers.schedule("expired", NOW - 1, lateBy="PT0.001S")
    await timers.schedule("claimed", 0)
    timers.broker.refuses = lambda message: b"claimed" in message.body
    await timers.tick()
    await timers.schedule("cancelled", after(days=400))
    await timers.cancel("cancelled")
    await timers.schedule("waits", after(days=400))
    timers.clock.set(EXPIRED)
    await timers.schedule("fired")
    retention = retention_of(timers.database)
    kept = (await retention.tick(EXPIRED - 1)).done, await remaining(timers)
    deleted = (await retention.tick(EXPIRED)).done, await remaining(timers)
    assert kept == (0, ["cancelled", "claimed", "expired", "failed", "fired", "waits"])
    assert deleted == (3, ["claimed", "failed", "waits"])
    assert list(await timers.database.reader.fetch("SELECT text FROM long_texts")) == []


@pytest.mark.parametrize("kind", ["reached", "expired", "cancelled"])
async def test_retention_in_batches(timers: Timers, kind: str) -> None:
    """A pass deletes at most one batch, oldest first, and asks for another pass until no expired row remains."""
    calls = [f"call-{number:04}" for number in range(2 * BATCH + 1)]
    more: dict[str, Any] = {"lateBy": 1} if kind == "expired" else {}
    for half in (calls[BATCH:], calls[:BATCH]):
        timers.clock.advance(seconds=10)
        for call in half:
            timers.send(schedule_timer(call, timers.clock.now() - 5 if kind != "cancelled" else after(days=1), **more))
        await timers.consume()
        if kind == "cancelled":
            await timers.cancel_many("call-")
            await timers.pass_cancellations()
        while await timers.tick():
            pass
    now, retention, passes = after(days=8), retention_of(timers.database), []
    for _ in range(4):
        deleted, next_at = await retention.tick(now)
        left = await remaining(timers)
        passes.append((deleted, len(left), next_at is not None and next_at > now))
        assert len(left) < BATCH or left[:BATCH] == calls[:BATCH], "these were settled later"
    assert passes == [(BATCH, BATCH + 1, True), (BATCH, 1, True), (1, 0, False), (0, 0, False)]


async def test_row_counts(store: Database, metrics: RecordingMetrics, clock: ManualClock) -> None:
    """The gauges show how many timers of all tenants are in each state, how many are overdue, and for how long."""
    async with store.transaction() as tx:
        await put_timers(
            tx,
            [
                scheduled("a", NOW - 2500),
                scheduled("b", NOW, tenant="other"),
                scheduled("c", NOW + 1),
                in_state(State.CANCELLED, scheduled("f")),
                in_state(State.FAILED, scheduled("h", NOW - 90_000)),
            ],
        )
    overdue = {timer_store.TIMERS.name: overdue_sql(timer_store.TIMERS)}
    row_counts = RowCounts(store, metrics, counted=SLICE.counted, overdue=overdue)
    assert await row_counts.tick(clock.now()) == Pass(5)
    found = {"Scheduled": 3, "Reached": 0, "Expired": 0, "Cancelled": 1, "Failed": 1}
    counts = {("timer_schedules", state): count for state, count in found.items()}
    assert metrics.counts == {**counts, ("timer_cancellations", "Waiting"): 0}
    assert metrics.overdues["timer_schedules"] == [(2, 2.5)]
