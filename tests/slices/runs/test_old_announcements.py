"""Announcements of runs that were deleted and started again."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.runs import events

NAMES = [f"job-{number}" for number in range(9)]


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return the runs slice on each store in turn. A transaction adds the event of one job."""
    monkeypatch.setattr(events, "_MOST_BYTES", 1)
    return Runs(store, memory_broker, clock)


async def test_run_that_was_deleted_and_started_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a deleted run has not announced announces no job of a later run of this name."""
    await runs.start({"seed": [], **{name: ["seed"] for name in NAMES}})
    await runs.report("failed", "seed")
    await runs.start(dict.fromkeys(NAMES, ()), runId="ready")
    for table in ("run_edges", "run_jobs", "runs"):
        await runs.sql(f"DELETE FROM {table}")
    monkeypatch.undo()
    await runs.start({"seed": [], **{name: ["seed"] for name in NAMES}})
    await runs.report("failed", "seed")
    await runs.start(dict.fromkeys(NAMES, ()), runId="ready")
    await runs.sql("DELETE FROM outbox")  # they were published
    await exhaust(runs.announcer, runs.clock.now())
    assert (await runs.rows("outbox"), await runs.rows("run_announcements")) == ([], [])
