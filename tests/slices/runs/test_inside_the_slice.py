"""What only shows when single deliveries are made again, and rows are read."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the needs slice over every store in turn."""
    return Runs(store, memory_broker, clock)


async def test_everything_delivered_twice(runs: Runs) -> None:
    """Whatever is delivered again lets nobody go twice and takes nothing back."""
    await runs.start({"a": [], "b": ["a", {"group": "g"}]}, "g")
    await runs.resolve("g", {"c": []})
    await runs.report("running", "a")
    await runs.report("success", "a")
    await runs.report("failed", "c")
    before = await runs.statuses()
    await runs.deliver_again()
    await runs.sweep.tick(runs.clock.now())
    assert await runs.statuses() == before == {"a": "success", "b": "skipped", "c": "failed"}
    assert (await runs.ready(), await runs.completed()) == (["a", "c"], ["failed"])
    assert (runs.outcomes().count("unchanged"), await runs.events_of("RunStuck")) == (4, [])


async def test_rejected_run_delivered_twice(runs: Runs) -> None:
    """A run that can't be run is rejected once, however often its command is delivered."""
    await runs.start({"a": ["a"]})
    await runs.deliver_again()
    assert (runs.outcomes(), len(await runs.events_of("RunRejected"))) == (["run_rejected", "unchanged"], 1)


async def test_one_batch(runs: Runs) -> None:
    """In one batch each command sees what those before it did, in several runs, whatever their order."""
    for run in ("run-2", "run-1"):
        runs.send("ReportJobStatus", runId=run, jobName="a", status="success")
        runs.send("StartRun", runId=run, jobs=jobs({"a": [], "b": ["a"], "c": ["b"]}))
        runs.send("ReportJobStatus", runId=run, jobName="a", status="failed")
        runs.send("CancelRun", runId=run)
    await runs.consume()
    assert await runs.statuses() == {"a": "success", "b": "cancelled", "c": "cancelled"}
    assert await runs.completed() == ["cancelled", "cancelled"]


async def test_early_commands_are_forgotten(runs: Runs) -> None:
    """What was kept for a run that was not known yet is kept no more once it is applied."""
    runs.send("StartRun", jobs=jobs({"a": []}))
    runs.send("ReportJobStatus", jobName="a", status="success")
    await runs.deliver_reversed()
    assert (await runs.completed(), await runs.rows("run_pending_commands")) == (["success"], [])
