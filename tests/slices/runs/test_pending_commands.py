"""Commands that are published before their run or their job is known."""

import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.counted_reads import CountedReads
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.limits.quotas import Admission, Amounts, Excess
from timer_service.core.ports import turns
from timer_service.core.ports.database import Database, Row
from timer_service.core.values.message import Command, Position, TenantPayload, Trace
from timer_service.runs import store as store_of_runs
from timer_service.runs.applier import RUN_ROWS, End, RunApplier
from timer_service.runs.draft import MAX_PENDING_BYTES, Draft, Pending, RunState
from timer_service.runs.messages import JobStatus, NewJob, ReportJobStatus, ResolveGroup, StartRun
from timer_service.runs.rules import NO_POSITION, Outcome, Run, RunKey
from timer_service.runs.run import apply


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice on each store in turn."""
    return Runs(store, memory_broker, clock)


async def test_job_dropped_before_its_group_is_resolved(runs: Runs) -> None:
    """A job that is dropped before its group is resolved never becomes ready."""
    await runs.start({"a": [], "last": [{"group": "g", "ifFailed": "run"}]}, "g", "h")
    await runs.report("success", "a", droppedJobs=["m2"])
    await runs.resolve("h", {})
    await runs.resolve("g", {"m1": [], "m2": []})
    assert (await runs.ready(), (await runs.statuses())["m2"]) == (["a", "m1"], "drift_dropped")
    assert await runs.rows("run_pending_commands") == []


async def test_dropped_jobs_of_several_groups(runs: Runs) -> None:
    """A report that drops jobs of two groups stays pending, as it is, until both groups are resolved."""
    await runs.start({"a": []}, "g1", "g2", "g3")
    await runs.report("running", "a", droppedJobs=["x", "y"])
    before = await runs.rows("run_pending_commands")
    await runs.resolve("g1", {"x": []})
    between = await runs.rows("run_pending_commands")
    await runs.resolve("g2", {"y": []})
    (run,) = await runs.rows("runs")
    assert await runs.statuses() == {"a": "running", "x": "drift_dropped", "y": "drift_dropped"}
    assert (before, run["pending_bytes"], await runs.rows("run_pending_commands")) == (between, 0, [])


async def test_report_that_waits_for_another_job_only(runs: Runs) -> None:
    """A report counts once for its own job, even if it stays pending for a job that it drops."""
    await runs.start({"a": [], "b": []}, "g1", "g2", "g3")
    await runs.report("running", "x", droppedJobs=["y", "b", "never"])
    await runs.resolve("g1", {"x": []})
    after_first = await runs.statuses()
    await runs.report("success", "x")
    (before,) = await runs.rows("runs")
    await runs.resolve("g2", {"y": [], "z": []})
    (after,) = await runs.rows("runs")
    assert after_first == {"a": "pending", "b": "drift_dropped", "x": "running"}
    assert await runs.statuses() == {
        "a": "pending",
        "b": "drift_dropped",
        "x": "success",
        "y": "drift_dropped",
        "z": "pending",
    }
    assert (before["pending_bytes"], before["sweep_at"]) == (after["pending_bytes"], after["sweep_at"])
    await runs.resolve("g3", {})
    (run,) = await runs.rows("runs")
    assert (run["pending_bytes"], await runs.rows("run_pending_commands")) == (0, [])


async def test_drop_by_a_report_that_is_kept(runs: Runs) -> None:
    """A report of an unknown job is kept, but the known jobs it drops are dropped at once."""
    await runs.start({"j": [], "k": ["j"]}, "g")
    reply = await runs.report("success", "m", droppedJobs=["j"])
    assert (reply["outcome"], await runs.statuses()) == ("kept", {"j": "drift_dropped", "k": "skipped"})


async def test_cancel_between_two_equal_starts(runs: Runs) -> None:
    """A CancelRun between two equal StartRun cancels the run."""
    runs.send("StartRun", jobs=jobs({"a": []}))
    runs.send("CancelRun")
    runs.send("StartRun", jobs=jobs({"a": []}))
    await runs.consume()
    assert (await runs.statuses(), await runs.completed()) == ({"a": "cancelled"}, ["cancelled"])


async def test_partly_applied_report_is_kept_beyond_the_limit(runs: Runs) -> None:
    """A report that was applied in part stays pending for its other jobs, even if the size limit is reached."""
    await runs.start({"a": []}, "g1", "g2")
    await runs.report("failed", "x", droppedJobs=["y"])
    send_large_reports(runs, 80)
    await runs.consume()
    assert "not_kept" in runs.outcomes()
    await runs.resolve("g1", {"x": []})
    await runs.resolve("g2", {"y": []})
    assert await runs.statuses() == {"a": "pending", "x": "failed", "y": "drift_dropped"}


async def test_cancel_between_pending_commands(runs: Runs) -> None:
    """A CancelRun of a run that is not started drops the pending commands before it. Later ones are kept."""
    runs.send("ReportJobStatus", jobName="a", status="failed")
    await runs.consume()
    runs.send("CancelRun")
    runs.send("ResolveGroup", groupName="g", jobs=[])
    await runs.consume()
    assert len(await runs.rows("run_pending_commands")) == 1
    await runs.start({"a": [{"group": "g"}]}, "g")
    assert (await runs.ready(), runs.outcomes()) == (["a"], ["kept", "kept", "not_found", "started"])
    assert await runs.rows("run_pending_commands") == []


async def test_cancel_of_an_unknown_run_leaves_nothing(runs: Runs) -> None:
    """A CancelRun of an unknown run stores nothing, and each one ends as `not_found`."""
    for _ in range(2):
        await runs.request("CancelRun")
    assert (runs.outcomes(), await runs.rows("runs")) == (["not_found"] * 2, [])


def send_large_reports(runs: Runs, count: int) -> None:
    for number in range(count):
        runs.send("ReportJobStatus", jobName=f"job-{number}", status="success", outputs={"log": "x" * 60_000})


def test_needs_are_kept_in_their_shortest_form() -> None:
    """A ResolveGroup that is kept counts no more bytes than it was sent with, and means the same."""
    needs = ["a", {"job": "b"}, {"group": "c"}, {"job": "d", "ifFailed": "run"}, {"group": "e", "ifFailed": "run"}]
    jobs = [{"name": "job", "needs": [*needs, {"job": "f", "ifFailed": "skip"}], "payload": None}]
    sent = ResolveGroup.model_validate({"tenantId": "acme", "runId": "run", "groupName": "group", "jobs": jobs})
    kept = sent.model_dump_json(exclude_unset=True)
    (job,) = json.loads(kept)["jobs"]
    assert job == {"name": "job", "needs": ["a", "b", *needs[2:], "f"], "payload": None}
    (again,) = ResolveGroup.model_validate_json(kept).jobs
    assert again.needed_jobs == sent.jobs[0].needed_jobs
    assert again.needed_groups == sent.jobs[0].needed_groups


async def test_pending_commands_are_bounded(runs: Runs) -> None:
    """Pending commands are kept up to a limit in bytes. Further commands end as `not_kept` and change nothing."""
    send_large_reports(runs, 100)
    await runs.consume()
    (run,) = await runs.rows("runs")
    outcomes = [runs.reply(number)["outcome"] for number in range(100)]
    assert set(outcomes) == {"kept", "not_kept"}
    assert outcomes.count("kept") == len(await runs.rows("run_pending_commands"))
    assert MAX_PENDING_BYTES - 61_000 < run["pending_bytes"] <= MAX_PENDING_BYTES


async def test_pending_commands_are_applied(runs: Runs) -> None:
    """Pending commands are applied when the run is started, and then deleted."""
    send_large_reports(runs, 100)
    runs.send("StartRun", jobs=jobs({f"job-{number}": [] for number in range(100)}))
    await runs.consume()
    outcomes = [runs.reply(number)["outcome"] for number in range(100)]
    (run,) = await runs.rows("runs")
    statuses = [row["status"] for row in await runs.rows("run_jobs")]
    assert statuses.count("success") == outcomes.count("kept") > 0
    assert (run["pending_bytes"], await runs.rows("run_pending_commands")) == (0, [])


async def test_commands_that_wait_do_not_read_each_other(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the StartRun, a ResolveGroup reads no other command: 4 MiB may wait. The StartRun reads each once."""
    groups: list[str] = []
    read_pending = store_of_runs.read_pending

    def recording(row: Row) -> Pending:
        pending = read_pending(row)
        groups.append(json.loads(pending.payload)["groupName"])
        return pending

    monkeypatch.setattr(store_of_runs, "read_pending", recording)
    for group in ("g", "h"):
        await runs.resolve(group, {f"in {group}": []})
    before = list(groups)
    await runs.start({"a": []}, "g", "h")
    assert (before, sorted(groups)) == ([], ["g", "h"])
    assert await runs.statuses() == {"a": "pending", "in g": "pending", "in h": "pending"}


async def test_jobs_of_groups_that_wait_are_read_if_they_are_needed(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The StartRun read the jobs of all groups that waited: 260,000 stopped the event loop for 3 s and took 200 MB."""
    groups = [("g", "a"), ("g", "d"), ("unknown", "b"), ("rejected", "a"), ("last", "c")]
    for group, name in groups:
        runs.send("ResolveGroup", groupName=group, jobs=jobs({name: []}))
    await runs.consume()
    read: list[str] = []
    monkeypatch.setattr(ResolveGroup, "model_post_init", lambda payload, _: read.append(payload.group_name))
    await runs.request("StartRun", jobs=[], groups=["g", "rejected", "last"])
    (run,) = await runs.rows("runs")
    assert (run["status"], run["pending_bytes"], await runs.rows("run_pending_commands")) == ("rejected", 0, [])
    assert [row["job_name"] for row in await runs.rows("run_jobs")] == ["a"]
    assert read == ["g", "rejected"]


async def test_applied_command_is_deleted(runs: Runs) -> None:
    """A pending report is deleted when it is applied."""
    await runs.report("success", "a")
    await runs.start({"a": []})
    assert (await runs.completed(), await runs.rows("run_pending_commands")) == (["success"], [])


async def test_drop_by_a_report_that_changes_nothing_else(runs: Runs) -> None:
    """A report drops jobs even if its own job has already ended with the same status."""
    await runs.start({"a": [], "b": [], "c": ["b"]})
    await runs.report("success", "a")
    outcome = await runs.report("success", "a", droppedJobs=["b"])
    assert (outcome["outcome"], await runs.statuses()) == (
        "unchanged",
        {"a": "success", "b": "drift_dropped", "c": "skipped"},
    )


@pytest.mark.parametrize(
    ("report", "outcome"), [(("success", "k"), "ignored_not_ready"), (("success", "x"), "unknown_job")]
)
async def test_drop_by_a_report_that_is_ignored(runs: Runs, report: tuple[str, str], outcome: str) -> None:
    """A report drops jobs even if it is ignored for its own job."""
    await runs.start({"j": [], "k": ["j"], "l": []})
    reply = await runs.report(*report, droppedJobs=["l"])
    assert (reply["outcome"], (await runs.statuses())["l"]) == (outcome, "drift_dropped")


async def test_repeated_start_does_not_read_what_waits(
    sqlite: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A command of 200 bytes would parse up to 4 MiB."""
    counted: Any = CountedReads(sqlite)
    runs = Runs(counted, memory_broker, clock)
    await runs.report("running", "z", droppedJobs=[f"{number}" for number in range(5000)])
    await runs.start({"a": []}, "g")
    counted.transactions.clear()
    reply = await runs.start({"a": []}, "g")
    assert reply["outcome"] == "unchanged"
    assert max(each.characters for each in counted.transactions) < 1000
    resolved = await runs.resolve("g", {"z": []})
    assert (resolved["outcome"], (await runs.statuses())["z"]) == ("resolved", "running")


ABOUT = {"tenant_id": "acme", "run_id": "run-1"}


def new_run() -> RunState:
    return RunState(Run(RunKey("acme", "run-1"), None, NO_POSITION, NOW), {}, {}, {}, {}, {})


def number_commands(*payloads: TenantPayload) -> list[Command]:
    return [
        Command(f"cmd-{place}", payload, Position(1, place), None, Trace(), None)
        for place, payload in enumerate(payloads, 1)
    ]


def test_names_of_dropped_jobs_count_for_the_limit() -> None:
    """The reports of one run would name 600,000 jobs. Each name takes memory when a group is resolved."""
    names = [f"{number}" for number in range(9_999)]
    report = ReportJobStatus(**ABOUT, job_name="z", status=JobStatus.RUNNING, dropped_jobs=names)
    commands = number_commands(*[report] * 5)
    after, outcomes = apply(new_run(), commands, NOW, evaluating=True)
    assert outcomes == [Outcome.KEPT] * 3 + [Outcome.NOT_KEPT] * 2
    draft = Draft(after, NOW, evaluating=True)
    tracemalloc.start()
    try:
        found = draft.take_reports(["none", "9"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(command, list(jobs)) for command, jobs in found] == [(command, ["9"]) for command in commands[:3]]
    assert peak < 10_000_000


def test_reports_are_not_read_again_for_each_group() -> None:
    """The reports of 10,000 jobs waited for 100 groups. Each group wrote them again: 50 ms and 5 MB for each."""
    groups = [f"g{number}" for number in range(100)]
    names = [*(f"in-{group}" for group in groups), *(f"{number}" for number in range(9_000))]
    report = ReportJobStatus(**ABOUT, job_name="z", status=JobStatus.RUNNING, dropped_jobs=names)
    start = StartRun(**ABOUT, jobs=[], groups=[*groups, "open"])
    resolved = [ResolveGroup(**ABOUT, group_name=group, jobs=[NewJob(name=f"in-{group}")]) for group in groups]
    commands = number_commands(start, report, report, *resolved)
    before, _ = apply(new_run(), commands[:3], NOW, evaluating=True)
    tracemalloc.start()
    try:
        after, outcomes = apply(before, commands[3:], NOW, evaluating=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcomes == [Outcome.RESOLVED] * 100
    assert {job.status for job in after.jobs.values()} == {JobStatus.DRIFT_DROPPED}
    assert all(after.pending[position] is pending for position, pending in before.pending.items())
    assert len(before.pending) == 2
    assert peak < 10_000_000


def test_few_small_reports_wait_for_their_run() -> None:
    """A StartRun applies all reports that wait for it in its transaction, so these are few, however small they are."""
    reports = [ReportJobStatus(**ABOUT, job_name=f"{number}", status=JobStatus.FAILED) for number in range(3_000)]
    after, outcomes = apply(new_run(), number_commands(*reports), NOW, evaluating=True)
    assert 1_900 < outcomes.count(Outcome.KEPT) == len(after.pending) < 2_100
    assert set(outcomes) == {Outcome.KEPT, Outcome.NOT_KEPT}


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


class _NoRows(Admission):
    """Admits no more rows of runs."""

    def __init__(self) -> None:
        """Count nothing."""

    async def exceeds(self, _tenant: str, growth: Amounts) -> Excess | None:
        return Excess("run_rows", 1) if growth[RUN_ROWS] > 0 else None


async def apply_without_rows(before: RunState, commands: Sequence[Command]) -> tuple[RunState, list[End]]:
    """Apply commands on a run whose tenant may have no more rows. Return the run, and how the first commands ended."""
    key = before.run.key
    applier = RunApplier({key: before}, _NoRows(), NOW, evaluating=True)
    ends = await applier.apply([(key, command) for command in commands])
    return applier.states[key], ends


async def test_commands_beyond_a_limit_are_left_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused commands on a run with many reports take long: each applies all of them. One is applied at least."""
    monkeypatch.setattr(turns, "TRANSACTION_SECONDS", -1)
    starts = number_commands(*(StartRun(**ABOUT, jobs=[NewJob(name=name)]) for name in "abc"))
    for number in range(len(starts)):
        after, ends = await apply_without_rows(new_run(), starts[number:])
        assert (after.run.started, ends) == (False, [Excess("run_rows", 1)])
