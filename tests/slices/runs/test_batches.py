"""Several commands on one run in one batch have the same effect as one by one."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


async def test_report_and_resolve_in_one_batch(runs: Runs) -> None:
    """A success and a resolved group in one batch both count for the job that needs them."""
    await runs.start({"a": [], "b": [], "c": ["a", "b"]}, "g")
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.send("ResolveGroup", groupName="g", jobs=[])
    await runs.consume()
    await runs.report("success", "b")
    assert await runs.ready() == ["a", "b", "c"]


async def test_two_groups_resolved_in_one_batch(runs: Runs) -> None:
    """After two groups are resolved in one batch, a report of a job in each of them is recorded."""
    await runs.start({"a": [], "last": ["a", {"group": "g1"}, {"group": "g2"}]}, "g1", "g2")
    runs.send("ResolveGroup", groupName="g1", jobs=jobs({"m1": ["a"]}))
    runs.send("ResolveGroup", groupName="g2", jobs=jobs({"m2": ["a"]}))
    await runs.consume()
    await runs.report("success", "a")
    await runs.report("success", "m1", "m2")
    assert await runs.ready() == ["a", "m1", "m2", "last"]
    assert "rejected" not in runs.outcomes()


async def test_started_and_cancelled_in_one_batch(runs: Runs) -> None:
    """A run that is started and cancelled in one batch publishes no JobReady and completes as cancelled."""
    runs.send("StartRun", jobs=jobs({"a": [], "b": []}))
    runs.send("CancelRun")
    await runs.consume()
    assert (await runs.ready(), await runs.completed()) == ([], ["cancelled"])


async def test_started_and_rejected_in_one_batch(runs: Runs) -> None:
    """A run that a ResolveGroup of the same batch rejects publishes no JobReady."""
    runs.send("StartRun", jobs=jobs({"a": [], "b": [{"group": "g"}]}), groups=["g"])
    runs.send("ResolveGroup", groupName="g", jobs=jobs({"c": ["b"]}))
    runs.send("ReportJobStatus", jobName="a", status="success")
    await runs.consume()
    (rejected,) = await runs.events_of("RunRejected")
    assert (await runs.ready(), rejected["payload"]["code"]) == ([], "CYCLE")
    assert runs.outcomes() == ["already_ended", "run_rejected", "started"]


async def test_only_the_group_that_closes_a_cycle_rejects(runs: Runs) -> None:
    """In one batch, only the ResolveGroup that closes a cycle rejects the run. Earlier ones end as resolved."""
    await runs.start({"a": [{"group": "g3"}]}, *(f"g{number}" for number in range(6)))
    for number in range(6):
        needs = ["a"] if number == 3 else []
        runs.send("ResolveGroup", groupName=f"g{number}", jobs=jobs({f"m{number}": needs}))
    await runs.consume()
    found = [runs.reply(1 + number)["outcome"] for number in range(6)]
    assert found == ["resolved", "resolved", "resolved", "run_rejected", "already_ended", "already_ended"]


async def test_cause_in_one_batch(runs: Runs) -> None:
    """The causation id of a JobReady is the id of the command that made the job ready."""
    await runs.start({"a": []}, "g")
    runs.send("ReportJobStatus", jobName="a", status="success", envelope={"id": "report"})
    runs.send("ResolveGroup", groupName="g", jobs=jobs({"x": ["a"]}), envelope={"id": "resolve"})
    await runs.consume()
    causes = {each["payload"]["jobName"]: each["causationId"] for each in await runs.events_of("JobReady")}
    assert causes["x"] == "resolve"
