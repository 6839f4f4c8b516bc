"""Commands that are delivered more than once."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database


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


async def test_rejected_run_delivered_twice(runs: Runs) -> None:
    """A redelivered StartRun with an invalid graph does not publish a second RunRejected."""
    await runs.start({"a": ["a"]})
    await runs.deliver_again()
    assert (runs.outcomes(), len(await runs.events_of("RunRejected"))) == (["run_rejected", "unchanged"], 1)
