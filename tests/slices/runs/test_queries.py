from typing import Any

from tests.harness.runs import RunConversation, run_after


async def test_run_with_its_jobs_and_needs(runs: RunConversation) -> None:
    """get-run shows the status, needs and outputs of each job, page by page."""
    await runs.start({"a": [], "b": ["a", {"group": "g"}], "c": [run_after("a")]}, "g", "empty")
    await runs.resolve("empty", {})
    await runs.report("failed", "a", outputs={"log": "x"})
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


async def test_list_is_newest_first(runs: RunConversation) -> None:
    """list-runs shows each run once, newest first, in pages of the given limit, and filters by status."""
    for name in ("one", "two", "three"):
        await runs.start({"a": []}, runId=name)
    await runs.report("success", "a", runId="two")
    await runs.report("success", "a", runId="only named")
    first = await runs.ask("list-runs", limit=2)
    rest = await runs.ask("list-runs", limit=2, cursor=first["cursor"])
    done = await runs.ask("list-runs", status="success")
    found = [[run["runId"] for run in page["runs"]] for page in (first, rest, done)]
    assert found == [["three", "two"], ["one"], ["two"]]


async def test_tombstone_is_not_shown(runs: RunConversation) -> None:
    """A run that was cancelled before it was started is not found and not listed, not even as cancelled."""
    await runs.request("CancelRun", runId="tombstone")
    await runs.start({"a": []}, runId="cancelled")
    await runs.request("CancelRun", runId="cancelled")
    reply = await runs.request("CancelRun", runId="tombstone")
    answer = await runs.ask("get-run", runId="tombstone")
    listed = [await runs.ask("list-runs", **question) for question in ({}, {"status": "cancelled"})]
    assert (reply["outcome"], "run" in reply) == ("unchanged", False)
    assert answer["error"]["code"] == "NOT_FOUND"
    assert [[run["runId"] for run in page["runs"]] for page in listed] == [["cancelled"], ["cancelled"]]
    await runs.start({"a": []}, runId="tombstone")
    assert await runs.statuses("tombstone") == {"a": "pending"}


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
