"""Commands that are delivered more than once."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


async def test_everything_delivered_twice(runs: Runs) -> None:
    """Redelivered commands change nothing: no job is ready twice and no status changes."""
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


async def test_older_report_cancels_only_its_job(runs: Runs) -> None:
    """A report `cancelled` that is older than the newest report of its job ends this job, and no other one."""
    await runs.start({"a": [], "b": [], "c": ["b"]})
    older = runs.sent
    for status in ("cancelled", "running"):
        runs.send("ReportJobStatus", jobName="a", status=status)
    await runs.deliver_in_order(older + 1, older)
    await runs.report("success", "b", "c")
    assert await runs.statuses() == {"a": "cancelled", "b": "success", "c": "success"}
    assert await runs.completed() == ["failed"]


async def test_rejected_run_delivered_twice(runs: Runs) -> None:
    """A redelivered StartRun with an invalid graph does not publish a second RunRejected."""
    await runs.start({"a": ["a"]})
    await runs.deliver_again()
    assert (runs.outcomes(), len(await runs.events_of("RunRejected"))) == (["run_rejected", "unchanged"], 1)
