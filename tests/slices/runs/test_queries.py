from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import RunConversation, Runs, run_after
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.requests.computing import Computing, Steps
from timer_service.core.values.paging import write_cursor


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


async def test_page_has_a_bounded_number_of_needs(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A page reads 64 KiB of needs. The next pages show the other jobs."""
    runs = Runs(sqlite, memory_broker, clock)
    names = [f"{number}" for number in range(4_000)]
    await runs.start({**{name: [] for name in names}, **{f"last-{number}": names for number in range(5)}})
    pages: list[list[int]] = []
    cursor = write_cursor(["last-0", ""])
    while cursor:
        page = await runs.ask("get-run", runId="run-1", cursor=cursor)
        pages.append([len(job["needs"]) for job in page["jobs"]])
        cursor = page.get("cursor", "")
    assert pages == [[4_000, 4_000], [4_000, 4_000], [4_000]]


async def test_page_of_many_needs_is_written_in_steps(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks run after each 1,000 needs that a page writes."""
    runs = Runs(sqlite, memory_broker, clock)
    names = [f"{number}" for number in range(4_000)]
    await runs.start({**{name: [] for name in names}, "last": names})
    steps: list[None] = []

    async def run(_computing: Computing, work: Steps[Any]) -> Any:
        steps.extend(noted := Noted(work))
        return noted.result

    monkeypatch.setattr(Computing, "run", run)
    await runs.ask("get-run", runId="run-1", cursor=write_cursor(["last", ""]))
    assert len(steps) == 5


class Noted:
    """The steps of a query, and its reply after them."""

    def __init__(self, work: Steps[Any]) -> None:
        self._work = work
        self.result: Any = None

    def __iter__(self) -> Steps[None]:
        self.result = yield from self._work


@pytest.mark.parametrize("most", [1, 14, 40, 60, 1000])
async def test_needs_that_do_not_fit_into_one_page(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However many characters of needs a page reads, the pages show each job with all its needs."""
    monkeypatch.setattr("timer_service.runs.queries._NEEDS_PER_PAGE", most)
    runs = Runs(sqlite, memory_broker, clock)
    graph: dict[str, list[object]] = {
        "a": [],
        "b": ["a"],
        "c": [],
        "d": ["a", "b", "c", {"group": "g"}],
        "e": ["d", "a"],
    }
    await runs.start(graph, "g")
    found: dict[str, list[object]] = {}
    cursor: dict[str, str] | None = {}
    while cursor is not None:
        reply = await runs.ask("get-run", runId="run-1", **cursor)
        assert len(reply["jobs"]) > 0
        for job in reply["jobs"]:
            found.setdefault(job["name"], []).extend(
                need.get("job") or {"group": need["group"]} for need in job["needs"]
            )
        cursor = {"cursor": reply["cursor"]} if "cursor" in reply else None
    assert {name: sorted(needs, key=str) for name, needs in found.items()} == {
        name: sorted(needs, key=str) for name, needs in graph.items()
    }


async def test_statements_of_a_large_run(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many jobs are read together with their needs: a run of 300 jobs takes few statements."""
    runs = Runs(sqlite, memory_broker, clock)
    await runs.start({"job-0": [], **{f"job-{number}": ["job-0"] for number in range(1, 300)}})
    reads: list[str] = []
    for name in ("fetch", "fetch_each"):
        monkeypatch.setattr(type(sqlite.queries), name, noting(reads, getattr(type(sqlite.queries), name)))
    assert len((await runs.ask("get-run", runId="run-1"))["jobs"]) == 300
    assert len(reads) <= 20


def noting(reads: list[str], real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a method of the reader that notes its statements."""

    async def read(self: object, sql: str, *arguments: object) -> Any:
        reads.append(sql)
        return await real(self, sql, *arguments)

    return read
