"""The guarantees of runs, tested with commands, events and queries only."""

import json
from typing import Any

import pytest

from tests.harness.clock import iso
from tests.harness.runs import Graph, RunConversation, jobs, run_after
from timer_service.core.values.address import Address, Kind

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DIAMOND: dict[str, Any] = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}


# The graph


async def test_diamond(runs: RunConversation) -> None:
    """Each job becomes ready once, after all jobs it needs have succeeded. Then the run completes."""
    await runs.start(DIAMOND)
    steps = [await runs.ready()]
    for name in ("top", "left", "right"):
        await runs.report("success", name)
        steps.append(await runs.ready())
    await runs.report("success", "bottom")
    assert steps == [["top"], ["top", "left", "right"], ["top", "left", "right"], ["top", "left", "right", "bottom"]]
    assert (await runs.events_of("RunCompleted"))[0]["payload"] == {
        "tenantId": runs.tenant,
        "runId": "run-1",
        "status": "success",
        "counts": {"success": 4},
    }


async def test_ready_event(runs: RunConversation) -> None:
    """JobReady has the fields of the contract, the outputs of the upstream jobs, and its cause."""
    given = {"name": "test", "needs": ["lint", "types"], "payload": {"image": "py311"}}
    await runs.request(
        "StartRun",
        jobs=[*jobs({"lint": [], "types": []}), given],
        envelope={"id": "cmd-1", "correlationId": "corr-1"},
        headers={"traceparent": TRACEPARENT},
    )
    await runs.report("success", "lint", outputs={"warnings": 0})
    await runs.report("success", "types", envelope={"id": "cmd-3"})
    (message,) = (each for each in await runs.stored() if b'"test"' in each.body)
    body = json.loads(message.body)
    assert message.address == Address(Kind.EVENT, runs.tenant, "job-ready")
    assert (message.id, message.headers["traceparent"]) == (body["id"], TRACEPARENT)
    assert body == {
        "id": body["id"],
        "type": "JobReady",
        "tenantId": runs.tenant,
        "correlationId": "corr-1",
        "causationId": "cmd-3",
        "timestampMs": body["timestampMs"],
        "payload": {
            "tenantId": runs.tenant,
            "runId": "run-1",
            "jobName": "test",
            "payload": {"image": "py311"},
            "upstreamJobOutputs": {"lint": {"warnings": 0}},
            "readyAt": iso(body["timestampMs"]),
        },
    }


# Groups


async def test_group_members_need_static_jobs(runs: RunConversation) -> None:
    """A job of a group waits for a static job, unless that job ended before the group was resolved."""
    await runs.start({"lint": [], "types": []}, "tests")
    await runs.report("success", "lint")
    await runs.resolve("tests", {"test-1": ["lint"], "test-2": ["types"]})
    assert await runs.ready() == ["lint", "types", "test-1"]
    await runs.report("success", "types")
    assert (await runs.ready())[-1] == "test-2"


async def test_group_members_need_group_members(runs: RunConversation) -> None:
    """Jobs of groups can need jobs of the same group, jobs of other groups, and other groups."""
    await runs.start({}, "build", "test", "report")
    await runs.resolve("test", {"test-1": [{"group": "build"}], "test-2": ["test-1"]})
    await runs.resolve("build", {"build-1": []})
    await runs.resolve("report", {"report-1": [{"group": "test"}, "build-1"]})
    for name in ("build-1", "test-1", "test-2"):
        assert (await runs.ready())[-1] == name
        await runs.report("success", name)
    assert (await runs.ready())[-1] == "report-1"
    await runs.report("success", "report-1")
    assert await runs.completed() == ["success"]


async def test_empty_group(runs: RunConversation) -> None:
    """An empty group delays no job. A run with only an empty group completes."""
    await runs.start({"deploy": [{"group": "tests"}]}, "tests")
    await runs.resolve("tests", {})
    assert await runs.ready() == ["deploy"]
    await runs.request("StartRun", runId="empty", jobs=[], groups=["tests"])
    await runs.request("ResolveGroup", runId="empty", groupName="tests", jobs=[])
    assert await runs.completed() == ["success"]


async def test_group_member_that_needs_a_failed_job(runs: RunConversation) -> None:
    """A job of a group that needs a failed job is skipped at once, and so is a job that needs the group."""
    await runs.start({"lint": [], "deploy": [{"group": "tests"}]}, "tests")
    await runs.report("failed", "lint")
    await runs.resolve("tests", {"test-1": ["lint"], "test-2": [run_after("lint")]})
    assert await runs.skipped() == {"test-1": "upstream_failed: lint", "deploy": "upstream_failed: test-1"}
    assert await runs.ready() == ["lint", "test-2"]


# Failure


async def test_skip_cascade(runs: RunConversation) -> None:
    """A failure skips the jobs that need it, directly or not, without waiting for their other needs."""
    await runs.start({"a": [], "sibling": [], "b": ["a", "sibling"], "c": ["b"], "d": ["c"]})
    await runs.report("failed", "a")
    assert await runs.skipped() == {
        "b": "upstream_failed: a",
        "c": "upstream_failed: b",
        "d": "upstream_failed: c",
    }
    assert await runs.completed() == []
    await runs.report("success", "sibling")
    assert (await runs.ready(), await runs.completed()) == (["a", "sibling"], ["failed"])


@pytest.mark.parametrize("status", ["success", "failed", "cancelled", "timed_out_stale"])
async def test_clean_up_runs_whatever_happens(runs: RunConversation, status: str) -> None:
    """With `ifFailed: run`, any end of the upstream job counts, also `skipped`. The job waits for all its needs."""
    await runs.start({"a": [], "b": ["a"], "notify": [run_after("b"), run_after("a")], "after": ["notify"]})
    await runs.report(status, "a")
    if status == "success":
        await runs.report("success", "b")
    assert (await runs.ready())[-1] == "notify"
    await runs.report("success", "notify")
    assert (await runs.ready())[-1] == "after"


@pytest.mark.parametrize(
    "report",
    [
        {"jobName": "gone", "status": "drift_dropped"},
        {"jobName": "other", "status": "success", "droppedJobs": ["gone", "unknown"]},
    ],
)
async def test_dropped_job(runs: RunConversation, report: dict[str, Any]) -> None:
    """A dropped job is a failure like any other, whether its own report or the report of another job drops it."""
    await runs.start({"other": [], "gone": [], "deploy": ["gone"]})
    await runs.request("ReportJobStatus", **report)
    assert await runs.skipped() == {"deploy": "upstream_failed: gone"}
    assert (await runs.statuses())["gone"] == "drift_dropped"


async def test_cancelled_run(runs: RunConversation) -> None:
    """A cancelled run ends at once, with its clean-up jobs. Later reports change nothing."""
    await runs.start({"a": [], "b": ["a"], "clean": [run_after("a")]}, "tests")
    await runs.report("running", "a")
    await runs.request("CancelRun")
    await runs.report("success", "a")
    await runs.resolve("tests", {"test-1": []})
    assert await runs.statuses() == dict.fromkeys(("a", "b", "clean"), "cancelled")
    assert (await runs.ready(), await runs.completed()) == (["a"], ["cancelled"])
    await runs.request("CancelRun")
    assert runs.outcomes() == ["already_ended", "already_ended", "cancelled", "recorded", "started", "unchanged"]


async def test_always_job_runs_after_a_failure(runs: RunConversation) -> None:
    """An `always` job waits until all jobs it needs have ended, and runs however they end."""
    await runs.start({"a": [], "b": ["a"], "c": [], "clean": ["b", "c"]}, always=["clean"])
    await runs.report("failed", "a")
    assert (await runs.statuses())["b"] == "skipped"
    assert await runs.ready() == ["a", "c"]
    await runs.report("success", "c")
    assert (await runs.ready())[-1] == "clean"
    (clean,) = [job for job in (await runs.ask("get-run", runId="run-1"))["jobs"] if job["name"] == "clean"]
    assert (clean["always"], {need["ifFailed"] for need in clean["needs"]}) == (True, {"run"})


async def test_always_jobs_run_after_a_cancel(runs: RunConversation) -> None:
    """The `always` jobs of a cancelled run run after the jobs they need, without waiting for groups. Then it ends."""
    graph: Graph = {"a": [], "b": ["a"], "stop": ["b", {"group": "g"}], "clean": ["stop"], "runs": []}
    await runs.start(graph, "g", always=["stop", "clean", "runs"])
    await runs.report("running", "a", "runs")
    reply = await runs.request("CancelRun")
    assert (reply["outcome"], reply["run"]["status"], reply["run"]["openJobs"]) == ("cancelled", "cancelling", 3)
    assert await runs.statuses() == {
        **dict.fromkeys("ab", "cancelled"),
        "stop": "pending",
        "clean": "pending",
        "runs": "running",
    }
    outcomes = [(await runs.request(message))["outcome"] for message in ("CancelRun", "RetryRun")]
    outcomes.append((await runs.resolve("g", {"c": []}))["outcome"])
    assert outcomes == ["unchanged", "unchanged", "already_ended"]
    listed = (await runs.ask("list-runs", status="cancelling"))["runs"]
    assert [each["runId"] for each in listed] == ["run-1"]
    await runs.report("failed", "runs", "stop")
    assert (await runs.ready(), await runs.completed()) == (["a", "runs", "stop", "clean"], [])
    await runs.report("success", "clean")
    (event,) = await runs.events_of("RunCompleted")
    assert event["payload"]["status"] == "cancelled"
    assert event["payload"]["counts"] == {"cancelled": 2, "failed": 2, "success": 1}


async def test_always_jobs_run_after_a_rejection(runs: RunConversation) -> None:
    """A run that a group makes invalid ends as rejected when its `always` jobs have ended."""
    await runs.start({"first": [], "deploy": [{"group": "g"}], "clean": ["first"]}, "g", always=["clean"])
    reply = await runs.resolve("g", {"test": ["deploy"]})
    assert (reply["outcome"], reply["run"]["status"], reply["run"]["code"]) == ("run_rejected", "cancelling", "CYCLE")
    assert ((await runs.ready())[-1], await runs.events_of("RunRejected")) == ("clean", [])
    assert (await runs.request("CancelRun"))["outcome"] == "already_ended"
    await runs.report("success", "clean")
    assert [each["payload"]["code"] for each in await runs.events_of("RunRejected")] == ["CYCLE"]
    assert (await runs.request("RetryRun"))["outcome"] == "already_ended"


# Invalid graphs and commands


@pytest.mark.parametrize(
    ("graph", "code", "path"),
    [
        ({"a": ["c"], "b": ["a"], "c": ["b"]}, "CYCLE", {"a", "b", "c"}),
        ({"a": ["a"]}, "CYCLE", {"a"}),
        ({"a": [], "b": ["unknown"]}, "UNKNOWN_UPSTREAM", {"b", "unknown"}),
        ({"b": [{"group": "unknown"}]}, "UNKNOWN_UPSTREAM", {"b", "unknown"}),
    ],
)
async def test_run_is_rejected(runs: RunConversation, graph: dict[str, Any], code: str, path: set[str]) -> None:
    """A run with an invalid graph is rejected, the event names the jobs at fault, and no job is ready."""
    await runs.start(graph)
    (event,) = await runs.events_of("RunRejected")
    assert (event["payload"]["code"], set(event["payload"]["path"])) == (code, path)
    assert (await runs.ready(), await runs.dead_letters()) == ([], [])
    view = await runs.ask("get-run", runId="run-1")
    assert (view["status"], view["code"], view["jobs"]) == ("rejected", code, [])
    await runs.start(graph)
    assert runs.outcomes() == ["run_rejected", "unchanged"]


async def test_duplicate_job(runs: RunConversation) -> None:
    """Two jobs of the same name reject the run, in one command and in a group that is resolved later."""
    await runs.request("StartRun", jobs=[*jobs({"a": []}), *jobs({"a": []})])
    await runs.start({"a": []}, "tests", runId="run-2")
    await runs.resolve("tests", {"a": []}, runId="run-2")
    rejected = await runs.events_of("RunRejected")
    assert [each["payload"]["code"] for each in rejected] == ["DUPLICATE_JOB"] * 2
    assert await runs.statuses("run-2") == {"a": "cancelled"}


async def test_cycle_that_a_group_closes(runs: RunConversation) -> None:
    """A cycle that a resolved group closes rejects the run with the path of the cycle, and cancels its jobs."""
    await runs.start({"first": [], "deploy": [{"group": "tests"}]}, "tests")
    await runs.resolve("tests", {"test-1": ["deploy"], "test-2": []})
    (event,) = await runs.events_of("RunRejected")
    assert set(event["payload"]["path"]) == {"deploy", "test-1"}
    assert await runs.statuses() == {"first": "cancelled", "deploy": "cancelled"}
    await runs.resolve("tests", {"test-1": ["deploy"], "test-2": []})
    assert (runs.outcomes(), await runs.completed()) == (["run_rejected", "started", "unchanged"], [])


INVALID: dict[str, tuple[str, dict[str, Any]]] = {
    "payload.jobs.0.need": ("StartRun", {"jobs": [{"name": "a", "need": []}]}),
    "payload.jobs.0": ("StartRun", {"jobs": [{"name": "a", "needs": ["b", {"job": "b"}]}]}),
    "payload.jobs.0.always": ("StartRun", {"jobs": [{"name": "a", "always": 1}]}),
    "payload.attempt": ("ReportJobStatus", {"jobName": "a", "status": "running", "attempt": 0}),
    "payload.jobs.0.staleAfterSeconds": ("StartRun", {"jobs": [{"name": "a", "staleAfterSeconds": 0}]}),
    "payload": ("ReportJobStatus", {"jobName": "a", "status": "pending"}),
    "payload.status": ("ReportJobStatus", {"jobName": "a", "status": "done"}),
}


async def test_invalid_commands(runs: RunConversation) -> None:
    """An invalid command becomes a dead letter, and CommandRejected names the invalid field."""
    for message, fields in INVALID.values():
        await runs.request(message, **fields)
    rejected = await runs.events_of("CommandRejected")
    assert [each["payload"]["errors"][0]["path"] for each in rejected] == list(INVALID)
    assert len(await runs.dead_letters()) == len(INVALID)


async def test_tenants_are_isolated(runs: RunConversation) -> None:
    """Tenants may use the same run id. No reply, no event and no query shows the run of another tenant."""
    other, third = f"{runs.tenant}-other", f"{runs.tenant}-third"
    await runs.start({"a": [], "b": ["a"]})
    reply = await runs.start({"a": [], "c": ["a"], "d": []}, tenant=other)
    assert (reply["outcome"], reply["run"]["status"], reply["run"]["openJobs"]) == ("started", "running", 3)
    await runs.report("success", "a", tenant=other)
    assert await runs.statuses() == {"a": "pending", "b": "pending"}
    assert (await runs.ready(), await runs.ready(other)) == (["a"], ["a", "d", "c"])
    assert (await runs.ask("get-run", tenant=third, runId="run-1"))["error"]["code"] == "NOT_FOUND"
    assert (await runs.ask("list-runs", tenant=third))["runs"] == []


# Large


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["memory_sqlite", "nats_postgres"], indirect=True)
async def test_ten_thousand_jobs(runs: RunConversation) -> None:
    """A run of 10,000 jobs and 50,000 edges starts in one command, and one failure skips 8,000 jobs."""
    layer, layers = 100, 100
    graph = {
        f"j{level:02}{number:02}": [f"j{level - 1:02}{(number + step) % layer:02}" for step in range(5 if level else 0)]
        for level in range(layers)
        for number in range(layer)
    }
    await runs.start(graph)
    assert len(await runs.ready()) == layer
    await runs.report("success", *(f"j00{number:02}" for number in range(5)))
    assert len(await runs.ready()) == layer + 1
    await runs.report("failed", "j0050")
    assert (await runs.ask("get-run", runId="run-1", limit=1))["counts"]["skipped"] > 8000


async def test_equal_graphs(runs: RunConversation) -> None:
    """The order of jobs, needs and groups, and the form of a need do not matter. A null payload is not no payload."""
    lint, test = {"name": "lint"}, {"name": "test", "needs": ["lint", {"group": "more"}]}
    await runs.request("StartRun", jobs=[lint, test], groups=["more", "others"])
    same = {"name": "test", "needs": [{"group": "more", "ifFailed": "skip"}, {"job": "lint"}]}
    again = await runs.request("StartRun", jobs=[same, lint], groups=["others", "more"])
    assert again["outcome"] == "unchanged"
    for changed in (
        {**lint, "payload": None},
        {**lint, "staleAfterSeconds": 1},
        {**lint, "always": True},
        {**lint, "needs": [{"group": "more"}]},
    ):
        other = await runs.request("StartRun", jobs=[changed, test], groups=["more", "others"])
        assert other["outcome"] == "exists"


@pytest.mark.parametrize("stage", ["memory_sqlite", "memory_postgres"], indirect=True)
async def test_deep_cascade(runs: RunConversation) -> None:
    """A failure skips a chain of 200 jobs at once."""
    chain = [f"job-{number:03}" for number in range(200)]
    await runs.start({name: [chain[at - 1]] if at else [] for at, name in enumerate(chain)})
    await runs.report("failed", chain[0])
    assert (len(await runs.skipped()), await runs.completed()) == (199, ["failed"])
