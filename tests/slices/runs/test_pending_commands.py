"""Commands that are published before their run or their job is known."""

from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs, jobs
from timer_service.core.ports.database import Database
from timer_service.core.values.message import Command, Position, Trace
from timer_service.runs.draft import RunState
from timer_service.runs.messages import JobStatus, ReportJobStatus
from timer_service.runs.rules import NO_POSITION, Outcome, Run, RunKey
from timer_service.runs.run import apply


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


async def pending(runs: Runs) -> tuple[int, int]:
    """Return how many commands are pending, and their size in the row of the run."""
    (run,) = await runs.rows("runs")
    return len(await runs.rows("run_pending_commands")), run["pending_bytes"]


async def test_published_before_the_start(runs: Runs) -> None:
    """Commands that are published before their run is known are kept, applied in order when it starts, and deleted."""
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.send("ReportJobStatus", jobName="c", status="success", outputs={"n": 1})
    runs.send("ResolveGroup", groupName="g", jobs=jobs({"c": ["a"]}))
    runs.send("ResolveGroup", groupName="unknown", jobs=jobs({"d": []}))
    await runs.consume()
    await runs.start({"a": [], "b": ["a", {"group": "g"}]}, "g")
    assert runs.outcomes() == ["kept"] * 4 + ["started"]
    (ready,) = await runs.events_of("JobReady")  # jobs that have already ended get none
    assert (ready["payload"]["jobName"], ready["payload"]["upstreamJobOutputs"]) == ("b", {"c": {"n": 1}})
    assert await pending(runs) == (0, 0)


async def test_dropped_jobs_of_several_groups(runs: Runs) -> None:
    """A report that drops jobs of two groups is pending until both are resolved. The jobs never become ready."""
    await runs.start({"a": [], "last": [{"group": "g2", "ifFailed": "run"}]}, "g1", "g2", "g3")
    await runs.report("running", "a", droppedJobs=["x", "y"])
    before = await pending(runs)
    await runs.resolve("g1", {"x": []})
    assert before == await pending(runs)
    await runs.resolve("g2", {"y": [], "z": []})
    assert await runs.statuses() == {
        "a": "running",
        "x": "drift_dropped",
        "y": "drift_dropped",
        "z": "pending",
        "last": "pending",
    }
    assert (await runs.ready(), await pending(runs)) == (["a", "z"], (0, 0))


async def test_report_that_waits_for_another_job_only(runs: Runs) -> None:
    """A report counts once for its own job, even if it stays pending for a job that it drops."""
    await runs.start({"a": [], "b": []}, "g1", "g2", "g3")
    await runs.report("running", "x", droppedJobs=["y", "b", "never"])
    await runs.resolve("g1", {"x": []})
    assert await runs.statuses() == {"a": "pending", "b": "drift_dropped", "x": "running"}
    await runs.report("success", "x")
    await runs.resolve("g2", {"y": []})
    assert await runs.statuses() == {"a": "pending", "b": "drift_dropped", "x": "success", "y": "drift_dropped"}
    assert (await pending(runs))[0] == 1
    await runs.resolve("g3", {})
    assert await pending(runs) == (0, 0)


async def test_cancel_between_pending_commands(runs: Runs) -> None:
    """A CancelRun of a run that is not started drops the pending commands before it. Later ones are kept."""
    await runs.request("CancelRun")
    assert await runs.rows("runs") == []
    await runs.report("failed", "a")
    runs.send("CancelRun")
    runs.send("ResolveGroup", groupName="g", jobs=[])
    await runs.consume()
    assert (await pending(runs))[0] == 1
    await runs.start({"a": [{"group": "g"}]}, "g")
    assert (await runs.ready(), runs.outcomes()) == (["a"], ["kept", "kept", "not_found", "not_found", "started"])


async def test_pending_commands_are_bounded(runs: Runs) -> None:
    """Pending commands are kept up to 4 MiB. Further ones end as `not_kept` and change nothing."""
    await runs.start({"a": []}, "g1", "g2")
    await runs.report("failed", "x", droppedJobs=["y"])
    for number in range(100):
        runs.send("ReportJobStatus", jobName=f"{number}", status="success", outputs={"log": "x" * 60_000})
    await runs.consume()
    count, size = await pending(runs)
    assert 4 * 1024 * 1024 - 63_000 < size <= 4 * 1024 * 1024
    assert (runs.outcomes().count("kept"), runs.outcomes().count("not_kept")) == (count, 101 - count)
    reply = await runs.report("failed", "z", droppedJobs=["a"], outputs={"log": "x" * 60_000})
    assert (reply["outcome"], await runs.statuses()) == ("not_kept", {"a": "pending"})
    await runs.resolve("g1", {"x": []})  # the report stays pending for its other job
    await runs.resolve("g2", {"y": [], **{f"{number}": [] for number in range(100)}})
    counts = (await runs.ask("get-run", runId="run-1", limit=1))["counts"]
    assert counts == {"pending": 102 - count, "failed": 1, "drift_dropped": 1, "success": count - 1}


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (("success", "k"), "ignored_not_ready"),
        (("success", "x"), "unknown_job"),
        (("success", "done"), "unchanged"),
        (("failed", "done"), "already_ended"),
    ],
)
async def test_drop_by_a_report_that_is_ignored(runs: Runs, report: tuple[str, str], outcome: str) -> None:
    """A report drops jobs even if it is ignored for its own job."""
    await runs.start({"done": [], "j": [], "k": ["j"], "l": [], "m": ["l"]})
    await runs.report("success", "done")
    reply = await runs.report(*report, droppedJobs=["l"])
    statuses = await runs.statuses()
    assert (reply["outcome"], statuses["l"], statuses["m"]) == (outcome, "drift_dropped", "skipped")


@pytest.mark.parametrize(
    "end", [("CancelRun", {}), ("ResolveGroup", {"groupName": "g", "jobs": jobs({"b": ["unknown"]})})]
)
async def test_ended_run_has_no_pending_commands(runs: Runs, end: tuple[str, dict[str, Any]]) -> None:
    """When a run is cancelled or rejected, the commands that were kept for it are deleted, and count no more."""
    await runs.start({"a": []}, "g")
    await runs.report("success", "later")
    before = await pending(runs)
    message, fields = end
    await runs.request(message, **fields)
    assert (before[0], await pending(runs)) == (1, (0, 0))


async def test_other_runs_with_the_same_names(runs: Runs) -> None:
    """Commands on a run change no row of another run of the tenant, nor of the run of another tenant with this id."""
    others = [("acme", "run-2"), ("globex", "run-1")]
    for tenant, run in (*others, ("acme", "run-1")):
        about = {"tenant": tenant, "runId": run}
        await runs.start({"a": [], "b": ["a"], "c": [{"group": "g"}, {"group": "h"}]}, "g", "h", **about)
        await runs.report("running", "d", **about)
        await runs.report("running", "e", **about)
    await runs.report("success", "early", runId="later")
    before = await rows_of(runs, others)
    outcomes = [
        (await runs.report("running", "a", outputs={"n": 1}))["outcome"],
        (await runs.report("success", "a"))["outcome"],
        (await runs.resolve("g", {"d": []}))["outcome"],
        *[(await runs.request("CancelRun", runId=run))["outcome"] for run in ("later", "run-1")],
    ]
    assert outcomes == ["recorded", "recorded", "resolved", "not_found", "cancelled"]
    view = await runs.ask("get-run", runId="run-1")
    assert [(job["name"], len(job["needs"])) for job in view["jobs"]] == [("a", 0), ("b", 1), ("c", 2), ("d", 0)]
    assert (view["counts"], await runs.completed()) == ({"success": 1, "cancelled": 3}, ["cancelled"])
    assert await rows_of(runs, others) == before


async def rows_of(runs: Runs, keys: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the rows of runs in all tables."""
    tables = ("runs", "run_jobs", "run_edges", "run_groups", "run_group_needs", "run_pending_commands")
    rows = [row for table in tables for row in await runs.rows(table)]
    return [row for row in rows if (row["tenant_id"], row["run_id"]) in keys]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
async def test_reason_of_a_skip_does_not_depend_on_the_order(runs: Runs, order: tuple[int, ...]) -> None:
    """A job that needs two dropped jobs is skipped because of the one that the report names first."""
    members = jobs({"a": [], "b": [], "c": [], "last": ["a", "b", "c"]})
    commands: list[tuple[str, dict[str, Any]]] = [
        ("StartRun", {"jobs": [], "groups": ["g", "h"]}),
        ("ResolveGroup", {"groupName": "g", "jobs": members}),
        ("ReportJobStatus", {"jobName": "of-h", "status": "running", "droppedJobs": ["c", "a", "b"]}),
    ]
    for number in order:
        message, fields = commands[number]
        await runs.request(message, **fields)
    assert await runs.skipped() == {"last": "upstream_failed: c"}


@pytest.mark.parametrize(("dropped", "most"), [(9_999, 3), (0, 2_000)])
def test_what_counts_besides_payloads(dropped: int, most: int) -> None:
    """Names of dropped jobs and the rows of commands count, so few are applied in one transaction."""
    report = ReportJobStatus(
        tenant_id="acme",
        run_id="run-1",
        job_name="z",
        status=JobStatus.RUNNING,
        dropped_jobs=[f"{number}" for number in range(dropped)],
    )
    commands = [Command("cmd", report, Position(1, place), None, Trace(), None) for place in range(2 + most * 21 // 20)]
    before = RunState(Run(RunKey("acme", "run-1"), None, NO_POSITION, NOW), {}, {}, {}, {}, {})
    _, outcomes = apply(before, commands, NOW, evaluating=True)
    assert outcomes.count(Outcome.KEPT) == pytest.approx(most, rel=0.05)
    assert set(outcomes) == {Outcome.KEPT, Outcome.NOT_KEPT}
