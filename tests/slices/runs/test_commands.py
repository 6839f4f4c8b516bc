"""What runs promise, as anybody who sends commands and reads events sees it."""

import json
from typing import Any

import pytest

from tests.harness.clock import iso
from tests.harness.random_runs import RandomRuns, check_events
from tests.harness.runs import RunConversation, jobs, run_of
from timer_service.core.message import Address, Kind

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DIAMOND: dict[str, Any] = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}


# The graph


async def test_diamond(runs: RunConversation) -> None:
    """Each job is let go once all it needs has succeeded, never before and only once; then the run is complete."""
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
    """JobReady is what the contract says, with what the upstreams put out, and says what caused it."""
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


async def test_outputs_that_do_not_fit_are_counted(runs: RunConversation) -> None:
    """An event that could not be published for its size leaves outputs out and says how many."""
    many = [f"part-{number:02}" for number in range(12)]
    await runs.start({**{name: [] for name in many}, "join": many})
    await runs.report("success", *many, outputs={"text": "x" * 60_000})
    told = (await runs.events_of("JobReady"))[-1]["payload"]
    assert (len(told["upstreamJobOutputs"]), told["outputsOmitted"]) == (8, 4)


async def test_fan_out_and_fan_in(runs: RunConversation) -> None:
    """One end lets hundreds go, and hundreds of ends let one go."""
    many = [f"part-{number:03}" for number in range(300)]
    await runs.start({"split": [], **{name: ["split"] for name in many}, "join": many})
    await runs.report("success", "split")
    assert sorted(await runs.ready()) == [*many, "split"]
    await runs.report("success", *many[1:])
    assert "join" not in await runs.ready()
    await runs.report("success", many[0])
    assert (await runs.ready())[-1] == "join"


# Groups


async def test_static_to_dynamic(runs: RunConversation) -> None:
    """A job that needs a group waits until that is resolved, and then for each of its jobs."""
    await runs.start({"deploy": [{"group": "tests"}]}, "tests")
    assert await runs.ready() == []
    await runs.resolve("tests", {"test-1": [], "test-2": []})
    assert await runs.ready() == ["test-1", "test-2"]
    await runs.report("success", "test-1", "test-2")
    assert await runs.ready() == ["test-1", "test-2", "deploy"]
    assert (await runs.events_of("JobReady"))[0]["payload"]["groupName"] == "tests"


async def test_dynamic_to_static(runs: RunConversation) -> None:
    """A job of a group waits for a static job, as one that ended before the group was resolved does not."""
    await runs.start({"lint": [], "types": []}, "tests")
    await runs.report("success", "lint")
    await runs.resolve("tests", {"test-1": ["lint"], "test-2": ["types"]})
    assert await runs.ready() == ["lint", "types", "test-1"]
    await runs.report("success", "types")
    assert (await runs.ready())[-1] == "test-2"


async def test_dynamic_to_dynamic(runs: RunConversation) -> None:
    """Jobs of groups need each other, by name within a group and across, and a group another."""
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
    """A group without jobs keeps nobody waiting; a run of nothing else is complete."""
    await runs.start({"deploy": [{"group": "tests"}]}, "tests")
    await runs.resolve("tests", {})
    assert await runs.ready() == ["deploy"]
    await runs.request("StartRun", runId="empty", jobs=[], groups=["tests"])
    await runs.request("ResolveGroup", runId="empty", groupName="tests", jobs=[])
    assert await runs.completed() == ["success"]


@pytest.mark.parametrize("first", ["lint", "group"])
async def test_mixed_needs_in_both_orders(runs: RunConversation, first: str) -> None:
    """A job that needs lint and a group waits for both, whichever ends first."""
    await runs.start({"lint": [], "deploy": ["lint", {"group": "tests"}]}, "tests")
    if first == "lint":
        await runs.report("success", "lint")
        assert "deploy" not in await runs.ready()
        await runs.resolve("tests", {"test-1": []})
        assert "deploy" not in await runs.ready()
        await runs.report("success", "test-1")
    else:
        await runs.resolve("tests", {"test-1": []})
        await runs.report("success", "test-1")
        assert "deploy" not in await runs.ready()
        await runs.report("success", "lint")
    assert (await runs.ready())[-1] == "deploy"


async def test_two_groups(runs: RunConversation) -> None:
    """A job that needs two groups waits while any of them is unresolved."""
    await runs.start({"deploy": [{"group": "a"}, {"group": "b"}]}, "a", "b")
    await runs.resolve("a", {})
    assert await runs.ready() == []
    await runs.resolve("b", {"b-1": []})
    await runs.report("success", "b-1")
    assert await runs.ready() == ["b-1", "deploy"]


async def test_group_member_that_can_not_go(runs: RunConversation) -> None:
    """A job of a group that needs one that has failed is skipped with its naming, and what needs the group with it."""
    await runs.start({"lint": [], "deploy": [{"group": "tests"}]}, "tests")
    await runs.report("failed", "lint")
    await runs.resolve("tests", {"test-1": ["lint"], "test-2": [run_of("lint")]})
    assert await runs.skipped() == {"test-1": "upstream_failed: lint", "deploy": "upstream_failed: test-1"}
    assert await runs.ready() == ["lint", "test-2"]


# Failure


async def test_skip_cascade(runs: RunConversation) -> None:
    """A failure skips what needs it at once, without waiting for siblings, and what needs that in turn."""
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
    """Over a run edge any end lets go, that of a skipped job too; it waits for all it needs, and skips nothing."""
    await runs.start({"a": [], "b": ["a"], "notify": [run_of("b"), run_of("a")], "after": ["notify"]})
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
        {"jobName": "other", "status": "success", "droppedJobs": ["gone", "nobody"]},
    ],
)
async def test_drift(runs: RunConversation, report: dict[str, Any]) -> None:
    """A job that turns out not to exist is a failure like any other, reported as such or dropped by another."""
    await runs.start({"other": [], "gone": [], "deploy": ["gone"]})
    await runs.request("ReportJobStatus", **report)
    assert await runs.skipped() == {"deploy": "upstream_failed: gone"}
    assert (await runs.statuses())["gone"] == "drift_dropped"


async def test_cancelled_run(runs: RunConversation) -> None:
    """A cancelled run ends at once, clean-up too: nothing is let go any more, and late reports change nothing."""
    await runs.start({"a": [], "b": ["a"], "clean": [run_of("a")]}, "tests")
    await runs.report("running", "a")
    await runs.request("CancelRun")
    await runs.report("success", "a")
    await runs.resolve("tests", {"test-1": []})
    assert await runs.statuses() == dict.fromkeys(("a", "b", "clean"), "cancelled")
    assert (await runs.ready(), await runs.completed()) == (["a"], ["cancelled"])
    await runs.request("CancelRun")
    assert runs.outcomes() == ["already_ended", "already_ended", "cancelled", "recorded", "started", "unchanged"]


# What can't be run


@pytest.mark.parametrize(
    ("graph", "code", "path"),
    [
        ({"a": ["c"], "b": ["a"], "c": ["b"]}, "CYCLE", {"a", "b", "c"}),
        ({"a": ["a"]}, "CYCLE", {"a"}),
        ({"a": [], "b": ["nobody"]}, "UNKNOWN_UPSTREAM", {"b", "nobody"}),
        ({"b": [{"group": "nobody"}]}, "UNKNOWN_UPSTREAM", {"b", "nobody"}),
    ],
)
async def test_run_is_rejected(runs: RunConversation, graph: dict[str, Any], code: str, path: set[str]) -> None:
    """A graph that can't be run is told as such, with the jobs at fault, and nothing of it goes."""
    await runs.start(graph)
    (event,) = await runs.events_of("RunRejected")
    assert (event["payload"]["code"], set(event["payload"]["path"])) == (code, path)
    assert (await runs.ready(), await runs.dead_letters()) == ([], [])
    view = await runs.ask("get-run", runId="run-1")
    assert (view["status"], view["code"], view["jobs"]) == ("rejected", code, [])
    await runs.start(graph)
    assert runs.outcomes() == ["run_rejected", "unchanged"]


async def test_duplicate_job(runs: RunConversation) -> None:
    """Two jobs of one name are told, in one command and in a group that comes later."""
    await runs.request("StartRun", jobs=[*jobs({"a": []}), *jobs({"a": []})])
    await runs.start({"a": []}, "tests", runId="run-2")
    await runs.resolve("tests", {"a": []}, runId="run-2")
    told = await runs.events_of("RunRejected")
    assert [each["payload"]["code"] for each in told] == ["DUPLICATE_JOB"] * 2
    assert await runs.statuses("run-2") == {"a": "cancelled"}


async def test_cycle_that_a_group_closes(runs: RunConversation) -> None:
    """A cycle that is only there once a group is resolved rejects the run, with the cycle's path; its jobs end."""
    await runs.start({"first": [], "deploy": [{"group": "tests"}]}, "tests")
    await runs.resolve("tests", {"test-1": ["deploy"], "test-2": []})
    (event,) = await runs.events_of("RunRejected")
    assert set(event["payload"]["path"]) == {"deploy", "test-1"}
    assert await runs.statuses() == {"first": "cancelled", "deploy": "cancelled"}
    await runs.resolve("tests", {"test-1": ["deploy"], "test-2": []})
    assert (runs.outcomes(), await runs.completed()) == (["run_rejected", "started", "unchanged"], [])


UNREADABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "payload.jobs.0.need": ("StartRun", {"jobs": [{"name": "a", "need": []}]}),
    "payload.jobs.0": ("StartRun", {"jobs": [{"name": "a", "needs": ["b", {"job": "b"}]}]}),
    "payload.jobs.0.staleAfterSeconds": ("StartRun", {"jobs": [{"name": "a", "staleAfterSeconds": 0}]}),
    "payload": ("ReportJobStatus", {"jobName": "a", "status": "pending"}),
    "payload.status": ("ReportJobStatus", {"jobName": "a", "status": "done"}),
}


async def test_what_can_not_be_read(runs: RunConversation) -> None:
    """A command that is no such command is a dead letter, and says which field is wrong."""
    for message, fields in UNREADABLE.values():
        await runs.request(message, **fields)
    told = await runs.events_of("CommandRejected")
    assert [each["payload"]["errors"][0]["path"] for each in told] == list(UNREADABLE)
    assert len(await runs.dead_letters()) == len(UNREADABLE)


# Commands, again and out of order


async def test_everything_told_twice(runs: RunConversation) -> None:
    """Whatever is told again lets nobody go twice and takes nothing back."""

    async def tell_all() -> None:
        await runs.start({"a": [], "b": ["a", {"group": "g"}]}, "g")
        await runs.resolve("g", {"c": []})
        await runs.report("running", "a")
        await runs.report("success", "a")
        await runs.report("failed", "c")

    await tell_all()
    before = await runs.statuses()
    await tell_all()
    assert await runs.statuses() == before == {"a": "success", "b": "skipped", "c": "failed"}
    assert (await runs.ready(), await runs.completed()) == (["a", "c"], ["failed"])
    assert (runs.outcomes().count("unchanged"), await runs.events_of("RunStuck")) == (4, [])


async def test_delivered_in_reverse(runs: RunConversation) -> None:
    """Commands that come before what they are about are kept, and applied in their order once that comes."""
    runs.send("StartRun", jobs=jobs({"a": [], "b": ["a", {"group": "g"}]}), groups=["g"])
    runs.send("ReportJobStatus", jobName="a", status="success")
    runs.send("ResolveGroup", groupName="g", jobs=jobs({"c": ["a"]}))
    runs.send("ReportJobStatus", jobName="c", status="success", outputs={"n": 1})
    await runs.deliver_reversed()
    assert runs.outcomes() == ["kept", "kept", "kept", "started"]
    (ready,) = await runs.events_of("JobReady")  # none for jobs that had ended by then
    assert (ready["payload"]["jobName"], ready["payload"]["upstreamJobOutputs"]) == ("b", {"c": {"n": 1}})


@pytest.mark.parametrize("status", ["success", "failed"])
async def test_reports_in_reverse(runs: RunConversation, status: str) -> None:
    """Of a job's reports that come in reverse its end counts, and what was under way before it does not."""
    await runs.start({"a": [], "b": [run_of("a")]})
    for each in ("dispatched", "running", status):
        runs.send("ReportJobStatus", jobName="a", status=each)
    await runs.deliver_reversed()
    assert await runs.statuses() == {"a": status, "b": "pending"}
    assert (await runs.ready(), runs.outcomes()) == (
        ["a", "b"],
        ["already_ended", "already_ended", "recorded", "started"],
    )


async def test_sent_at_once(runs: RunConversation) -> None:
    """Of commands sent at once each sees what those before it did, in several runs, whatever their order."""
    for run in ("run-2", "run-1"):
        runs.send("ReportJobStatus", runId=run, jobName="a", status="success")
        runs.send("StartRun", runId=run, jobs=jobs({"a": [], "b": ["a"], "c": ["b"]}))
        runs.send("ReportJobStatus", runId=run, jobName="a", status="failed")
        runs.send("CancelRun", runId=run)
    runs.send("StartRun", runId="run-3", jobs=jobs({"a": [], "b": ["a"]}))
    runs.send("ReportJobStatus", runId="run-3", jobName="a", status="success")
    runs.send("ReportJobStatus", runId="run-3", jobName="b", status="success")
    await runs.consume()
    assert await runs.statuses() == {"a": "success", "b": "cancelled", "c": "cancelled"}
    assert sorted(await runs.completed()) == ["cancelled", "cancelled", "success"]


async def test_cascade_through_a_job_reported_too_early(runs: RunConversation) -> None:
    """A success that is reported of a job that has not been let go keeps no cascade from going through it."""
    await runs.start({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]})
    runs.send("ReportJobStatus", jobName="a", status="failed")
    await runs.report("success", "b")
    assert (await runs.skipped()).keys() == {"b", "c", "d"}


async def test_cancel_before_start(runs: RunConversation) -> None:
    """A StartRun that is delivered after a newer CancelRun ends like one delivered before it: the run is cancelled."""
    runs.send("StartRun", jobs=jobs({"a": []}))
    runs.send("CancelRun")
    await runs.deliver_reversed()
    assert (await runs.ready(), runs.outcomes()) == ([], ["cancelled", "not_found"])
    assert (await runs.completed(), await runs.statuses()) == (["cancelled"], {"a": "cancelled"})
    assert (await runs.start({"a": []}))["outcome"] == "unchanged"


async def test_started_after_a_cancel(runs: RunConversation) -> None:
    """A StartRun that is newer than a CancelRun of its name starts the run."""
    await runs.request("CancelRun")
    await runs.start({"a": []})
    assert (await runs.ready(), await runs.completed()) == (["a"], [])


async def test_published_before_start(runs: RunConversation) -> None:
    """What was published before the StartRun counts once that is handled, in the order of the stream."""
    await runs.resolve("g", {"b": ["a"]})
    await runs.report("success", "a", outputs={"n": 1})
    await runs.start({"a": [], "c": [{"group": "g"}]}, "g")
    assert (await runs.ready(), await runs.statuses()) == (["b"], {"a": "success", "b": "pending", "c": "pending"})


async def test_reply(runs: RunConversation) -> None:
    """Whoever asks for the outcome is told the run as it stands then."""
    reply = await runs.start({"a": []})
    assert (reply["outcome"], reply["run"]["status"], reply["run"]["openJobs"]) == ("started", "running", 1)


async def test_tenants_are_apart(runs: RunConversation) -> None:
    """Runs of one name belong to their tenants, and no event and no question shows another's."""
    other, third = f"{runs.tenant}-other", f"{runs.tenant}-third"
    await runs.start({"a": [], "b": ["a"]})
    await runs.start({"a": [], "c": ["a"]}, tenant=other)
    await runs.report("success", "a", tenant=other)
    assert await runs.statuses() == {"a": "pending", "b": "pending"}
    assert (await runs.ready(), await runs.ready(other)) == (["a"], ["a", "c"])
    assert (await runs.ask("get-run", tenant=third, runId="run-1"))["error"]["code"] == "NOT_FOUND"
    assert (await runs.ask("list-runs", tenant=third))["runs"] == []


# Large and random


async def test_agrees_with_a_plain_gate(runs: RunConversation) -> None:
    """Of random runs, whose jobs end in random order, those go that a plain gate lets go, once."""
    drawn = RandomRuns(seed=7, count=8)
    drawn.start(runs)
    await runs.consume()
    while drawn.report(runs):
        await runs.consume()
        assert await drawn.seen(runs) == drawn.verdicts()
    await check_events(runs, drawn)


@pytest.mark.parametrize("stage", ["nats-sqlite", "nats-postgres"], indirect=True)
async def test_ten_thousand_jobs(runs: RunConversation) -> None:
    """A run of ten thousand jobs and fifty thousand edges starts in one command, goes on and falls."""
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
