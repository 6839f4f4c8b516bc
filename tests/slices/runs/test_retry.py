"""A run that has ended runs its failed jobs again."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.in_process import exhaust
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import RunConversation, Runs, run_after
from tests.slices.runs.test_portions import command
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction
from timer_service.runs import events
from timer_service.runs.handler import count_before_retry
from timer_service.runs.messages import CancelRun, RetryRun
from timer_service.runs.retention import delete_settled
from timer_service.runs.rules import RunKey

GRAPH = {"lint": [], "test": ["lint"], "package": ["test"], "publish": ["package"], "docs": [], "notify": ["docs"]}


async def test_failed_and_skipped_jobs_run_again(runs: RunConversation) -> None:
    """The failed jobs run again, and what was skipped because of them. The other jobs keep their ends.

    The events of the new attempt have ids of their own.
    """
    await runs.start(GRAPH)
    await runs.report("success", "lint", outputs={"n": 1})
    await runs.report("failed", "test", outputs={"n": 2})
    await runs.report("skipped", "docs")
    assert (await runs.statuses())["publish"] == "skipped"
    reply = await runs.request("RetryRun", envelope={"id": "retry-1"})
    assert (reply["outcome"], reply["run"]["status"], reply["run"]["attempt"]) == ("retried", "running", 2)
    assert await runs.statuses() == {
        **dict.fromkeys(("test", "package", "publish"), "pending"),
        "lint": "success",
        "docs": "skipped",
        "notify": "skipped",
    }
    await runs.report("success", "test", attempt=2)
    for name in ("package", "publish"):
        await runs.report("success", name)
    assert await runs.completed() == ["failed", "success"]
    assert await runs.ready() == ["docs", "lint", "test", "test", "package", "publish"]
    *_, again, package, _ = await runs.events_of("JobReady")
    assert (again["payload"]["attempt"], again["causationId"]) == (2, "retry-1")
    assert again["payload"]["upstreamJobOutputs"] == {"lint": {"n": 1}}
    assert package["payload"]["upstreamJobOutputs"] == {}  # the outputs of the failed attempt are gone
    counts = [
        (each["payload"].get("attempt", 1), each["payload"]["counts"]) for each in await runs.events_of("RunCompleted")
    ]
    assert counts == [(1, {"success": 1, "failed": 1, "skipped": 4}), (2, {"success": 4, "skipped": 2})]
    ids = [each["id"] for kind in ("JobReady", "JobSkipped", "RunCompleted") for each in await runs.events_of(kind)]
    assert (len(ids), len(set(ids))) == (11, 11)
    jobs = (await runs.ask("get-run", runId="run-1"))["jobs"]
    assert {job["name"] for job in jobs if job.get("attempt") == 2} == {"test", "package", "publish"}


async def test_always_jobs_run_in_each_attempt(runs: RunConversation) -> None:
    """An `always` job runs again after a job that runs again, because there may be more to clean up.

    A job that needs a failed one with `ifFailed: run`, and has succeeded, does not.
    """
    await runs.start(
        {"test": [], "report": [run_after("test")], "clean": ["test"], "after": ["clean"]}, always=["clean"]
    )
    await runs.report("failed", "test")
    await runs.report("success", "report", "clean", "after")
    await runs.request("RetryRun")
    assert await runs.statuses() == {"test": "pending", "report": "success", "clean": "pending", "after": "success"}
    await runs.report("success", "test")
    assert (await runs.ready()).count("clean") == 2
    await runs.report("success", "clean")
    assert await runs.completed() == ["failed", "success"]


async def test_cancelled_run_runs_again(runs: RunConversation) -> None:
    """The cancelled jobs of a run run again, and its groups are open again."""
    await runs.start({"a": [], "b": ["a", {"group": "g"}], "clean": [{"group": "g"}]}, "g", always=["clean"])
    await runs.report("success", "a")
    await runs.request("CancelRun")
    await runs.report("success", "clean")
    assert await runs.completed() == ["cancelled"]
    reply = await runs.request("RetryRun")
    assert (reply["outcome"], reply["run"]["unresolvedGroups"]) == ("retried", 1)
    assert await runs.statuses() == {"a": "success", "b": "pending", "clean": "pending"}
    await runs.resolve("g", {"c": []})
    await runs.report("success", "c")
    assert (await runs.ready())[-2:] == ["b", "clean"]
    await runs.report("success", "b", "clean")
    assert await runs.completed() == ["cancelled", "success"]


async def test_pending_reports_are_gone(runs: RunConversation) -> None:
    """A report that was pending when the run was cancelled has no effect in the next attempt."""
    await runs.start({"clean": []}, "g", always=["clean"])
    assert (await runs.report("failed", "a"))["outcome"] == "kept"
    await runs.request("CancelRun")
    await runs.report("success", "clean")
    await runs.request("RetryRun")
    assert (await runs.report("failed", "unknown"))["outcome"] == "kept"
    await runs.resolve("g", {"a": []})
    assert (await runs.statuses())["a"] == "pending"


async def test_only_a_group_is_open_again(runs: RunConversation) -> None:
    """A cancelled run all of whose jobs had succeeded can run again, if a group was not resolved."""
    await runs.start({"a": []}, "g")
    await runs.report("success", "a")
    await runs.request("CancelRun")
    await runs.request("RetryRun")
    await runs.resolve("g", {})
    assert (await runs.completed(), await runs.ready()) == (["cancelled", "success"], ["a"])


async def test_late_report_changes_no_later_attempt(runs: RunConversation) -> None:
    """A report that names an earlier attempt has no effect, also not on the jobs that it drops."""
    await runs.start({"a": [], "b": []})
    await runs.report("failed", "a", "b", attempt=1)
    await runs.request("RetryRun")
    reply = await runs.report("success", "a", attempt=1, droppedJobs=["b"])
    assert (reply["outcome"], await runs.statuses()) == ("already_ended", {"a": "pending", "b": "pending"})
    assert (await runs.report("success", "a", attempt=2))["outcome"] == "recorded"
    assert (await runs.report("success", "b"))["outcome"] == "recorded"


async def test_dropped_jobs_stay(runs: RunConversation) -> None:
    """A job that turned out not to exist does not run again, and neither does what was skipped because of it."""
    await runs.start({"a": [], "gone": [], "b": ["a", "gone"], "c": ["gone"]})
    await runs.report("drift_dropped", "gone")
    await runs.report("failed", "a")
    await runs.request("RetryRun")
    assert await runs.statuses() == {"a": "pending", "gone": "drift_dropped", "b": "skipped", "c": "skipped"}
    await runs.report("success", "a")
    assert await runs.completed() == ["failed", "failed"]
    assert (await runs.request("RetryRun"))["outcome"] == "already_ended"  # nothing is left to run


def test_retry_begins_its_transaction() -> None:
    """A RetryRun is the first command on its run in a transaction, so each end has its event."""
    fields = [("a", CancelRun), ("b", RetryRun), ("a", CancelRun), ("b", CancelRun), ("a", RetryRun), ("c", RetryRun)]
    keyed = [(RunKey("acme", name), command(kind(tenant_id="acme", run_id=name))) for name, kind in fields]
    assert [count_before_retry(keyed[start:]) for start in (0, 1, 4)] == [4, 3, 2]


async def test_end_and_retry_in_one_batch(runs: RunConversation) -> None:
    """A run that ends and runs again in one batch has the event of each end."""
    await runs.start({"a": []})
    for attempt in (1, 2, 3):
        runs.send("ReportJobStatus", jobName="a", status="failed", attempt=attempt)
        runs.send("RetryRun")
    await runs.consume()
    assert [each["payload"].get("attempt", 1) for each in await runs.events_of("RunCompleted")] == [1, 2, 3]
    attempts = [each["payload"].get("attempt", 1) for each in await runs.events_of("JobReady")]
    assert (attempts[0], attempts[-1]) == (1, 4)  # a job that ended in the transaction that made it ready has no event


@pytest.fixture
def slice_(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


async def test_run_that_is_being_deleted(slice_: Runs) -> None:
    """A run of which retention has deleted a part does not run again. It is deleted completely."""
    await slice_.start({**{f"{number}": [] for number in range(20)}, "last": ["1"]})
    await slice_.request("CancelRun")
    slice_.clock.advance(days=8)
    now = slice_.clock.now()
    await in_transaction(slice_.database, lambda tx: delete_settled(tx, now, 3))
    assert (await slice_.request("RetryRun"))["outcome"] == "not_found"
    while await in_transaction(slice_.database, lambda tx: delete_settled(tx, now, 10)):
        pass
    assert await slice_.rows("runs") == []
    assert (await slice_.request("RetryRun"))["outcome"] == "not_found"


async def test_attempts_are_bounded(slice_: Runs) -> None:
    """A run begins at most 100 times."""
    await slice_.start({"a": []})
    await slice_.request("CancelRun")
    await slice_.sql("UPDATE runs SET attempt = 99")
    assert (await slice_.request("RetryRun"))["outcome"] == "retried"
    await slice_.request("CancelRun")
    assert (await slice_.request("RetryRun"))["outcome"] == "already_ended"


async def test_retried_run_is_kept(slice_: Runs) -> None:
    """Retention keeps a run that runs again, and deletes it after its next end."""
    await slice_.start({"a": []})
    await slice_.report("failed", "a")
    slice_.clock.advance(days=8)
    await slice_.request("RetryRun")
    now = slice_.clock.now()
    assert await in_transaction(slice_.database, lambda tx: delete_settled(tx, now, 10)) == 0
    await slice_.report("success", "a")
    assert (await slice_.only_row("runs"))["settled_at"] == slice_.clock.now()


async def test_retry_while_runs_are_disabled(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While runs are disabled, a RetryRun is stored. When they are enabled again, the sweep makes the jobs ready."""
    on, off = Runs(store, memory_broker, clock), Runs(store, memory_broker, clock, enabled=False)
    await on.start({"a": [], "b": ["a"]})
    await on.report("failed", "a")
    assert (await off.request("RetryRun"))["outcome"] == "retried"
    assert await off.ready() == ["a"]
    await exhaust(on.sweep, clock.now())
    assert (await on.ready(), await on.events_of("RunStuck")) == (["a", "a"], [])


async def test_retried_run_counts_again(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A run that runs again counts towards the limits of its tenant, and so does one that is cancelling."""
    runs = Runs(store, memory_broker, clock, limits=TenantLimits(default=Limits(open_runs=1)))
    await runs.start({"a": []}, always=["a"])
    assert (await runs.request("CancelRun"))["run"]["status"] == "cancelling"
    assert (await runs.start({}, "g", runId="other"))["outcome"] == "over_quota"
    await runs.report("failed", "a")
    assert (await runs.start({}, "g", runId="other"))["outcome"] == "started"
    assert (await runs.request("RetryRun"))["outcome"] == "over_quota"
    assert await runs.statuses() == {"a": "failed"}
    await runs.request("CancelRun", runId="other")
    assert (await runs.request("RetryRun"))["outcome"] == "retried"


async def test_retry_before_the_announcement(slice_: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that was not added before the job ran again is left out. Those of the new attempt are added once.

    The event of a job that stays skipped is added, with the attempt in which the job was skipped.
    """
    monkeypatch.setattr(events, "MOST_BYTES", 1)
    names = [f"job-{number}" for number in range(4)]
    await slice_.start({"a": [], "gone": [], "stays": ["gone"], **{name: ["a"] for name in names}})
    await slice_.publish()
    slice_.send("ReportJobStatus", jobName="gone", status="drift_dropped")
    slice_.send("ReportJobStatus", jobName="a", status="failed")
    slice_.send("RetryRun")
    await slice_.consume()  # in the same millisecond
    await slice_.report("success", "a")
    assert await slice_.ready() == ["a", "gone", "a", *names]
    skipped = [each["payload"] for each in await slice_.events_of("JobSkipped")]
    assert [each["jobName"] for each in skipped].count("stays") == 1
    assert len(skipped) <= 2  # one event had room in the transaction of the report
    assert not any("attempt" in each for each in skipped)
