import json
from typing import Any

import pytest

from tests.harness.clock import ManualClock, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import RunConversation, Runs, run_after
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.runs import queries


async def test_run_with_its_jobs_and_needs(runs: RunConversation) -> None:
    """get-run shows the status, needs and outputs of each job, page by page."""
    await runs.start({"a": [], "b": ["a", {"group": "g"}], "c": [run_after("a")]}, "g", "empty")
    await runs.resolve("empty", {})
    runs.send("ReportJobStatus", jobName="a", status="running", outputs={"log": "x"})  # the end has none
    await runs.report("failed", "a")
    first = await runs.ask("get-run", runId="run-1", limit=2)
    rest = await runs.ask("get-run", runId="run-1", limit=2, cursor=first["cursor"])
    jobs = {job["name"]: job for job in (*first["jobs"], *rest["jobs"])}
    assert "cursor" not in rest
    assert (first["counts"], first["groups"]) == (
        {"failed": 1, "pending": 1, "skipped": 1},
        {"empty": True, "g": False},
    )
    assert (jobs["a"]["status"], jobs["a"]["outputs"], jobs["a"]["needs"]) == ("failed", {"log": "x"}, [])
    assert jobs["b"]["needs"] == [{"job": "a", "ifFailed": "skip"}, {"group": "g", "ifFailed": "skip"}]
    assert (jobs["b"]["reason"], jobs["c"]["needs"]) == ("upstream_failed: a", [{"job": "a", "ifFailed": "run"}])
    assert ("readyAt" in jobs["b"], "readyAt" in jobs["c"]) == (False, True)


async def test_fields_of_a_run_and_its_jobs(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A run shows when it began and ended, and each job when it was ready and when it ended."""
    runs = Runs(sqlite, memory_broker, clock)
    await runs.start({"a": []}, "g", "h", "i")
    started = iso(clock.now())
    clock.advance(minutes=1)
    await runs.resolve("g", {"b": []})
    resolved = iso(clock.now())
    clock.advance(minutes=1)
    await runs.report("success", "b")
    reported = iso(clock.now())
    whole = await runs.ask("get-run", runId="run-1")
    about = {"tenantId": "acme", "runId": "run-1", "createdAt": started}
    a = {"name": "a", "needs": [], "readyAt": started}
    b = {"name": "b", "needs": [], "readyAt": resolved, "settledAt": reported, "status": "success", "groupName": "g"}
    counts = {"counts": {"pending": 1, "success": 1}, "groups": {"g": True, "h": False, "i": False}}
    shown = {"openJobs": 1, "unresolvedGroups": 2, **counts, "jobs": [{**a, "status": "pending"}, b]}
    assert whole == {**about, "status": "running", **shown}
    clock.advance(minutes=1)
    await runs.resolve("h", {"c": ["c"]})
    rejected = {"status": "rejected", "settledAt": iso(clock.now()), "openJobs": 0, "unresolvedGroups": 0}
    (view,) = (await runs.ask("list-runs"))["runs"]
    assert view == {**about, **rejected, "code": "CYCLE", "path": ["c", "c"]}


async def test_list_has_open_runs_first(runs: RunConversation) -> None:
    """list-runs shows each run once, open ones first, each newest first, in pages of a limit, and filters by status.

    Runs that were started at the same time are in order of their ids.
    """
    for name in ("run-1", "run-2", "run-3"):
        runs.send("StartRun", runId=name, jobs=[{"name": "a"}])
    await runs.consume()
    await runs.start({"a": []}, runId="a-third")
    await runs.report("success", "a", runId="run-2")
    await runs.report("success", "a", runId="only named")
    first = await runs.ask("list-runs", limit=2)
    rest = await runs.ask("list-runs", limit=2, cursor=first["cursor"])
    done = await runs.ask("list-runs", status="success")
    found = [[run["runId"] for run in page["runs"]] for page in (first, rest, done)]
    assert found == [["a-third", "run-3"], ["run-1", "run-2"], ["run-2"]]


async def test_page_with_many_jobs(runs: RunConversation) -> None:
    """A page has as many jobs as the query asks for, and the next one begins with the next job."""
    await runs.start({f"{number:03}": [] for number in range(300)})
    page = await runs.ask("get-run", runId="run-1", limit=250)
    rest = await runs.ask("get-run", runId="run-1", limit=250, cursor=page["cursor"])
    assert [len(page["jobs"]), rest["jobs"][0]["name"], len(rest["jobs"])] == [250, "250", 50]


async def test_run_that_is_not_started_is_not_shown(runs: RunConversation) -> None:
    """A run that has only pending commands, or had some before a CancelRun, is neither found nor listed."""
    await runs.report("success", "a", runId="pending")
    await runs.start({"a": []}, runId="cancelled")
    await runs.request("CancelRun", runId="cancelled")
    answers = [await runs.ask("get-run", runId="pending")]
    reply = await runs.request("CancelRun", runId="pending")
    answers.append(await runs.ask("get-run", runId="pending"))
    listed = [await runs.ask("list-runs", **question) for question in ({}, {"status": "cancelled"})]
    assert (reply["outcome"], "run" in reply) == ("not_found", False)
    assert [each["error"]["code"] for each in answers] == ["NOT_FOUND"] * 2
    assert [[run["runId"] for run in page["runs"]] for page in listed] == [["cancelled"], ["cancelled"]]
    await runs.start({"a": []}, runId="pending")
    assert await runs.statuses("pending") == {"a": "pending"}


WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("runId", "get-run", {}),
    ("cursor", "get-run", {"runId": "run-1", "cursor": "Wzdd"}),
    ("status", "list-runs", {"status": "done"}),
    ("cursor", "list-runs", {"cursor": "Wzdd"}),
]


async def test_invalid_field(runs: RunConversation) -> None:
    """An invalid, missing or unknown field is rejected with its name."""
    await runs.start({"a": []})
    found = [(await runs.ask(name, **question))["error"]["errors"] for _, name, question in WRONG]
    assert [each["path"] for (each,) in found] == [path for path, _, _ in WRONG]


@pytest.mark.parametrize("most", [1, 100, 160, 250, 400, 10_000])
async def test_needs_that_do_not_fit_into_one_page(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However many bytes a page has, the pages show each job with all its needs."""
    monkeypatch.setattr(queries, "PAGE_BYTES", most)
    runs = Runs(sqlite, memory_broker, clock)
    graph: dict[str, list[object]] = {
        "a": [],
        "b": ["a"],
        "c": [],
        "d": ["a", "b", "c", {"group": "g"}],
        "e": ["d", "a"],
    }
    await runs.start(graph, "g")
    await runs.report("success", "a", outputs={"log": "x" * 50})
    found: dict[str, list[object]] = {}
    cursor: dict[str, str] | None = {}
    sizes: list[int] = []
    while cursor is not None:
        reply = await runs.ask("get-run", runId="run-1", **cursor)
        sizes.append(len(json.dumps(reply["jobs"])) if len(reply["jobs"]) > 1 else 0)
        *others, last = reply["jobs"]
        assert not any("moreNeeds" in job for job in others)
        assert "cursor" in reply or "moreNeeds" not in last
        for job in reply["jobs"]:
            found.setdefault(job["name"], []).extend(
                need.get("job") or {"group": need["group"]} for need in job["needs"]
            )
        cursor = {"cursor": reply["cursor"]} if "cursor" in reply else None
    assert max(sizes) <= 1.5 * most
    assert {name: sorted(needs, key=str) for name, needs in found.items()} == {
        name: sorted(needs, key=str) for name, needs in graph.items()
    }


@pytest.mark.slow
async def test_job_with_many_needs(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """The JobReady and each reply about a job with thousands of needs fit into 1 MiB. The pages show all needs."""
    runs = Runs(sqlite, memory_broker, clock)
    members = [f"{number:04}-".ljust(150, "n") for number in range(4_900)]
    await runs.start({"last": [{"group": "g"}]}, "g")
    await runs.resolve("g", {name: [] for name in members})
    await runs.report("success", *members, outputs={"log": "x" * 60})
    (event,) = [each for each in await runs.stored() if b'"jobName":"last"' in each.body]
    payload = json.loads(event.body)["payload"]
    assert len(event.body) < 1024 * 1024
    assert len(payload["upstreamJobOutputs"]) + payload["outputsOmitted"] == len(members)
    needs: list[str] = []
    cursor: dict[str, str] | None = {}
    while cursor is not None:
        reply = await runs.ask("get-run", runId="run-1", **cursor)
        assert len(json.dumps(reply)) < 1024 * 1024
        needs += [need["job"] for job in reply["jobs"] if job["name"] == "last" for need in job["needs"]]
        cursor = {"cursor": reply["cursor"]} if "cursor" in reply else None
    assert needs == members
