"""Several commands on one run in one batch, and early commands: they end as if they came alone and in order."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.database import Database
from timer_service.runs.draft import MAX_PENDING_BYTES
from timer_service.runs.retention import delete_settled

MIB = 1024 * 1024


@pytest.fixture
def runs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Runs:
    """Return the runs slice over every store in turn."""
    return Runs(store, memory_broker, clock)


@asynccontextmanager
async def watched_loop() -> AsyncIterator[list[float]]:
    """Measure how long the event loop was blocked, in seconds, each time."""
    blocks: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            blocks.append(time.perf_counter() - before)

    watching = asyncio.create_task(watch())
    try:
        yield blocks
    finally:
        watching.cancel()


# One batch


async def test_report_and_resolve_in_one_batch(runs: Runs) -> None:
    """A success and a resolved group in one batch both count for the job that needs them."""
    await runs.start({"a": [], "b": [], "c": ["a", "b"]}, "g")
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.send("ResolveGroup", groupName="g", jobs=[])
    await runs.consume()
    await runs.report("success", "b")
    assert await runs.ready() == ["a", "b", "c"]


async def test_two_groups_resolved_in_one_batch(runs: Runs) -> None:
    """Groups resolved in one batch leave the right counts: a later report finds its job and is recorded."""
    await runs.start({"a": [], "last": ["a", {"group": "g1"}, {"group": "g2"}]}, "g1", "g2")
    runs.send("ResolveGroup", groupName="g1", jobs=jobs({"m1": ["a"]}))
    runs.send("ResolveGroup", groupName="g2", jobs=jobs({"m2": ["a"]}))
    await runs.consume()
    await runs.report("success", "a")
    await runs.report("success", "m1", "m2")
    assert await runs.ready() == ["a", "m1", "m2", "last"]
    assert "rejected" not in runs.outcomes()


async def test_started_and_cancelled_in_one_batch(runs: Runs) -> None:
    """A run that is cancelled in the batch that starts it emits no JobReady, and completes as cancelled."""
    runs.send("StartRun", jobs=jobs({"a": [], "b": []}))
    runs.send("CancelRun")
    await runs.consume()
    assert (await runs.ready(), await runs.completed()) == ([], ["cancelled"])


async def test_started_and_rejected_in_one_batch(runs: Runs) -> None:
    """A run that a ResolveGroup of the same batch rejects emits no JobReady."""
    runs.send("StartRun", jobs=jobs({"a": [], "b": [{"group": "g"}]}), groups=["g"])
    runs.send("ResolveGroup", groupName="g", jobs=jobs({"c": ["b"]}))
    runs.send("ReportJobStatus", jobName="a", status="success")
    await runs.consume()
    (rejected,) = await runs.events_of("RunRejected")
    assert (await runs.ready(), rejected["payload"]["code"]) == ([], "CYCLE")
    assert runs.outcomes() == ["already_ended", "run_rejected", "started"]


async def test_only_the_group_that_closes_a_cycle_rejects(runs: Runs) -> None:
    """Of many groups resolved in one batch, those before the cycle are resolved and those behind it come too late."""
    await runs.start({"a": [{"group": "g3"}]}, *(f"g{number}" for number in range(6)))
    for number in range(6):
        needs = ["a"] if number == 3 else []
        runs.send("ResolveGroup", groupName=f"g{number}", jobs=jobs({f"m{number}": needs}))
    await runs.consume()
    found = [runs.reply(1 + number)["outcome"] for number in range(6)]
    assert found == ["resolved", "resolved", "resolved", "run_rejected", "already_ended", "already_ended"]


# Early commands


async def test_dropped_before_it_is_known(runs: Runs) -> None:
    """A job that a report drops before its group is resolved is never dispatched."""
    await runs.start({"a": [], "last": [{"group": "g", "ifFailed": "run"}]}, "g", "h")
    await runs.report("success", "a", droppedJobs=["m2"])
    await runs.resolve("h", {})
    await runs.resolve("g", {"m1": [], "m2": []})
    assert (await runs.ready(), (await runs.statuses())["m2"]) == (["a", "m1"], "drift_dropped")
    assert await runs.rows("run_pending_commands") == []


async def test_dropped_jobs_of_several_groups(runs: Runs) -> None:
    """A report that drops jobs of groups that are resolved one after the other is kept until the last of them."""
    await runs.start({"a": []}, "g1", "g2")
    await runs.report("running", "a", droppedJobs=["x", "y"])
    before = (await runs.rows("runs"))[0]["pending_bytes"]
    await runs.resolve("g1", {"x": []})
    between = (await runs.rows("runs"))[0]["pending_bytes"]
    await runs.resolve("g2", {"y": []})
    (run,) = await runs.rows("runs")
    assert await runs.statuses() == {"a": "running", "x": "drift_dropped", "y": "drift_dropped"}
    assert before > between > run["pending_bytes"] == 0
    assert await runs.rows("run_pending_commands") == []


async def test_many_pending_commands_and_many_groups(runs: Runs) -> None:
    """A ResolveGroup applies only the pending commands that name its jobs, however many others there are."""
    groups = [f"g{number}" for number in range(100)]
    await runs.start({"a": []}, *groups)
    for number in range(2_000):
        runs.send("ReportJobStatus", jobName=f"unknown-{number}", status="failed")
    await runs.consume()
    for group in groups[1:]:
        runs.send("ResolveGroup", groupName=group, jobs=[])
    async with watched_loop() as blocks:
        await runs.consume()
    assert (runs.outcomes().count("kept"), runs.outcomes().count("resolved")) == (2_000, 99)
    assert max(blocks) < 0.5
    await runs.request("ResolveGroup", groupName="g0", jobs=[])
    assert (await runs.rows("run_pending_commands"), (await runs.rows("runs"))[0]["pending_bytes"]) == ([], 0)


async def test_drop_by_a_report_that_changes_nothing_else(runs: Runs) -> None:
    """Jobs are dropped also by a report that comes after its job has ended in the same status."""
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
async def test_drop_by_a_report_that_does_not_count(runs: Runs, report: tuple[str, str], outcome: str) -> None:
    """Jobs are dropped also by a report that is ignored for its own job."""
    await runs.start({"j": [], "k": ["j"], "l": []})
    reply = await runs.report(*report, droppedJobs=["l"])
    assert (reply["outcome"], (await runs.statuses())["l"]) == (outcome, "drift_dropped")


async def test_drop_by_a_report_that_is_kept(runs: Runs) -> None:
    """Jobs that are known are dropped at once, also by a report whose own job is not known yet."""
    await runs.start({"j": [], "k": ["j"]}, "g")
    reply = await runs.report("success", "m", droppedJobs=["j"])
    assert (reply["outcome"], await runs.statuses()) == ("kept", {"j": "drift_dropped", "k": "skipped"})


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
async def test_started_again_by_the_same_graph(runs: Runs, order: tuple[int, ...]) -> None:
    """A StartRun that is sent twice loses nothing of what was sent between, whichever copy is delivered first."""
    graph: dict[str, list[Any]] = {"a": [{"group": "g"}]}
    runs.send("StartRun", jobs=jobs(graph), groups=["g"])
    runs.send("ResolveGroup", groupName="g", jobs=[])
    runs.send("StartRun", jobs=jobs(graph), groups=["g"])
    runs.broker.withhold(*runs.positions)
    await runs.deliver_in(*order)
    assert (await runs.ready(), (await runs.rows("runs"))[0]["open_groups"]) == (["a"], 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
async def test_cancelled_between_two_copies(runs: Runs, order: tuple[int, ...]) -> None:
    """A CancelRun between two copies of a StartRun cancels the run, whichever is delivered first."""
    runs.send("StartRun", jobs=jobs({"a": []}))
    runs.send("CancelRun")
    runs.send("StartRun", jobs=jobs({"a": []}))
    runs.broker.withhold(*runs.positions)
    await runs.deliver_in(*order)
    assert (await runs.statuses(), await runs.completed()) == ({"a": "cancelled"}, ["cancelled"])


async def test_kept_report_that_grows_when_the_store_is_full(runs: Runs) -> None:
    """What is left of a kept report is kept again, also if there is no room for a new one."""
    await runs.start({"a": []}, "g1", "g2")
    await runs.report("failed", "x", droppedJobs=["y"])
    send_large_reports(runs, 80)
    await runs.consume()
    assert "not_kept" in runs.outcomes()
    await runs.resolve("g1", {"x": []})
    await runs.resolve("g2", {"y": []})
    assert await runs.statuses() == {"a": "pending", "x": "failed", "y": "drift_dropped"}


async def test_cause_in_one_batch(runs: Runs) -> None:
    """A JobReady names the command that made its job ready, in one batch as one by one."""
    await runs.start({"a": []}, "g")
    runs.send("ReportJobStatus", jobName="a", status="success", envelope={"id": "report"})
    runs.send("ResolveGroup", groupName="g", jobs=jobs({"x": ["a"]}), envelope={"id": "resolve"})
    await runs.consume()
    causes = {each["payload"]["jobName"]: each["causationId"] for each in await runs.events_of("JobReady")}
    assert causes["x"] == "resolve"


async def test_newer_than_a_tombstone(runs: Runs) -> None:
    """A ResolveGroup that overtakes its StartRun waits for it, also if an older CancelRun left a tombstone."""
    runs.send("CancelRun")
    runs.send("StartRun", jobs=jobs({"a": [{"group": "g"}]}), groups=["g"])
    runs.send("ResolveGroup", groupName="g", jobs=[])
    cancel, start, resolve = 0, 1, 2
    await runs.deliver_in(cancel, resolve, start)
    assert (await runs.ready(), runs.outcomes()) == (["a"], ["kept", "not_found", "started"])


async def test_tombstone_forgets_older_commands(runs: Runs) -> None:
    """A CancelRun of a run that is not known drops what was kept for it and is older."""
    runs.send("ResolveGroup", groupName="g", jobs=[])
    runs.send("CancelRun")
    runs.send("ReportJobStatus", jobName="a", status="success")
    await runs.deliver_in(0, 2, 1)
    (row,) = await runs.rows("run_pending_commands")
    assert row["command_type"] == "ReportJobStatus"
    (run,) = await runs.rows("runs")
    assert 0 < run["pending_bytes"] < 1000


def send_large_reports(runs: Runs, count: int) -> None:
    for number in range(count):
        runs.send("ReportJobStatus", jobName=f"job-{number}", status="success", outputs={"log": "x" * 60_000})


async def test_pending_commands_are_bounded(runs: Runs) -> None:
    """Early commands of one run are kept up to a limit in bytes; the others end as `not_kept`, and change nothing."""
    send_large_reports(runs, 100)
    await runs.consume()
    await runs.deliver_again(0)
    (run,) = await runs.rows("runs")
    outcomes = [runs.reply(number)["outcome"] for number in range(100)]
    assert set(outcomes) == {"kept", "not_kept"}
    assert outcomes.count("kept") == len(await runs.rows("run_pending_commands"))
    assert MAX_PENDING_BYTES - 61_000 < run["pending_bytes"] <= MAX_PENDING_BYTES


async def test_pending_commands_are_applied(runs: Runs) -> None:
    """What was kept is applied once the run is started, and takes no room any more."""
    runs.send("StartRun", jobs=jobs({f"job-{number}": [] for number in range(100)}))
    send_large_reports(runs, 100)
    start, *reports = range(101)
    await runs.deliver_in(*reports, start)
    outcomes = [runs.reply(number)["outcome"] for number in reports]
    (run,) = await runs.rows("runs")
    statuses = [row["status"] for row in await runs.rows("run_jobs")]
    assert statuses.count("success") == outcomes.count("kept") > 0
    assert (run["pending_bytes"], await runs.rows("run_pending_commands")) == (0, [])


# Sizes


@pytest.mark.parametrize(("count", "length"), [(4_900, 190), pytest.param(9_900, 80, marks=pytest.mark.full)])
async def test_job_with_many_needs(runs: Runs, count: int, length: int) -> None:
    """The events and the replies about a job with many needs of long names fit into 1 MiB; pages show all of it."""
    members = [f"{number:04}-".ljust(length, "n") for number in range(count)]
    await runs.start({"last": [{"group": "g"}, {"group": "h"}]}, "g", "h")
    await runs.resolve("g", {name: [] for name in members[::2]})
    await runs.resolve("h", {name: [] for name in members[1::2]})
    await runs.report("success", *members, outputs={"log": "x" * 60})
    (event,) = [each for each in await runs.stored() if b'"jobName":"last"' in each.body]
    payload = json.loads(event.body)["payload"]
    assert len(event.body) < MIB
    assert len(payload["upstreamJobOutputs"]) + payload["outputsOmitted"] == count
    needs: dict[str, list[Any]] = {}
    cursor: dict[str, str] = {}
    while True:
        reply = await runs.ask("get-run", runId="run-1", **cursor)
        assert len(json.dumps(reply)) < MIB
        for job in reply["jobs"]:
            needs.setdefault(job["name"], []).extend(job["needs"])
        if "cursor" not in reply:
            break
        assert reply["cursor"] != cursor.get("cursor")
        cursor = {"cursor": reply["cursor"]}
    assert [need["job"] for need in needs["last"]] == sorted(members)
    assert needs.keys() == {"last", *members}


async def test_a_thousand_groups_in_one_batch(runs: Runs) -> None:
    """A thousand ResolveGroup on a run of 9,000 jobs, in one batch, block the loop for a moment only."""
    graph: dict[str, list[Any]] = {
        f"job-{number}": [f"job-{number - 1}"] if number % 10 else [] for number in range(7_900)
    }
    groups = [f"g{number}" for number in range(1_000)]
    waiting: dict[str, list[Any]] = {f"waits-{number}": [{"group": group}] for number, group in enumerate(groups)}
    await runs.start(graph | waiting, *groups)
    for number, group in enumerate(groups):
        runs.send("ResolveGroup", groupName=group, jobs=jobs({f"m{number}": ["job-0"]}))
    started = time.perf_counter()
    async with watched_loop() as blocks:
        await runs.consume()
    seconds = time.perf_counter() - started
    assert runs.outcomes().count("resolved") == 1_000
    print(f"longest block {max(blocks) * 1000:.0f} ms of {seconds:.1f} s")
    assert max(blocks) < 1
    assert seconds < 10


async def test_get_run_while_it_is_deleted(runs: Runs) -> None:
    """A run is answered also while retention has deleted a part of it."""
    await runs.start({"a": [{"group": "g"}], "b": ["a"]}, "g")
    await runs.request("CancelRun")
    runs.clock.advance(days=8)
    replies = []
    while "error" not in (reply := await runs.ask("get-run", runId="run-1")):
        replies.append(reply["status"])
        async with runs.database.transaction() as tx:
            await delete_settled(tx, runs.clock.now(), 1)
    assert set(replies) == {"cancelled"}
    assert reply["error"]["code"] == "NOT_FOUND"
