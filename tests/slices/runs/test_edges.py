"""The rows of edges. A graph with many needs has few of them, so its transaction is short."""

import pytest

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs, run_after
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.runs import store as run_store
from timer_service.runs.edges import read_needed_by, read_needs, write_needed_by, write_needs
from timer_service.runs.graph import Edge
from timer_service.runs.messages import IfFailed, NewJob, StartRun

SKIP, RUN = IfFailed.SKIP, IfFailed.RUN


def test_edges_are_read_as_they_were_written() -> None:
    """The stored JSON has each edge, from either end. A job without edges has none."""
    down = [Edge("a", "c", RUN), Edge("a", 'b"\u00e9', SKIP)]
    up = [Edge("c", "d", SKIP), Edge("a", "d", RUN), Edge("b", "d", SKIP)]
    assert sorted(read_needed_by("a", write_needed_by(down) or "")) == sorted(down)
    assert read_needs(write_needs(up) or "") == [("a", RUN), ("b", SKIP), ("c", SKIP)]
    assert (write_needs([]), write_needed_by([])) == (None, None)


async def test_rows_of_many_needs(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A job has one row for all its edges, also if a group adds some of them later."""
    runs = Runs(store, memory_broker, clock)
    top = [f"top-{number}" for number in range(20)]
    bottom = [f"bottom-{number}" for number in range(20)]
    await runs.start({**{name: [] for name in top}, **{name: [*top, {"group": "g"}] for name in bottom}}, "g")
    assert len(await runs.rows("run_edges")) == 40
    await runs.resolve("g", {"more": [run_after("top-0")]})
    rows = {row["job_name"]: row for row in await runs.rows("run_edges")}
    assert rows.keys() == {*top, *bottom, "more"}
    assert read_needs(rows["bottom-7"]["needs"]) == sorted((name, SKIP) for name in [*top, "more"])
    assert read_needs(rows["more"]["needs"]) == [("top-0", RUN)]
    needed_by = read_needed_by("top-0", rows["top-0"]["needed_by"])
    assert sorted(needed_by) == sorted([*(Edge("top-0", name, SKIP) for name in bottom), Edge("top-0", "more", RUN)])
    assert rows["top-0"]["needs"] is None


def test_edges_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON of edges that is in memory at a time is limited: long names may be in it 100,000 times."""
    monkeypatch.setattr(run_store, "_PART_CHARACTERS", 100)
    rows = [("acme", "r", f"job-{number}", "x" * 30, 30, None if number % 2 else "y" * 30) for number in range(9)]
    parts = list(run_store._in_parts(iter(rows)))
    assert [row for part in parts for row in part] == rows
    assert [len(part) for part in parts] == [3, 3, 3]


def test_digest_is_computed_with_the_command() -> None:
    """The digest of a graph is known before the transaction begins. It takes long for many needs."""
    command = StartRun(tenant_id="acme", run_id="r", jobs=[NewJob(name="a")])
    assert "digest" in vars(command)
