"""The figures of the benchmarks: faults of events, medians, ratios, the order of the runs, and the published files."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import records
from benchmarks.chart import chart
from benchmarks.comparison import ROWS, Figure, Row, medians, ratios
from benchmarks.plan import COMPARISON, Group, plan
from benchmarks.processes import BenchmarkError
from benchmarks.records import Benchmark, Record, Result, Run
from benchmarks.report import page
from benchmarks.scenarios import SCENARIOS
from benchmarks.sender import count_acknowledged, frame
from benchmarks.timers import Fired, Timer, faults

ROOT = Path(__file__).parents[2]
OURS, THEIRS = Figure("drain", "timers/s"), Figure("nats-drain", "timers/s")
ROW = Row("due together", OURS, "nats-server", THEIRS)
HUEY = ROW._replace(theirs=Figure("huey", "jobs/s"), syncs=("always",))
TWO = Row("due together", OURS._replace(instances=2), "one instance", OURS)


def record(scenario: str, value: float, problem: str = "", **run: Any) -> Record:
    name = "jobs/s" if scenario == "huey" else "timers/s"
    result = Result({name: value}, [problem] if problem else [])
    return Record(Run(scenario, "sqlite", "always", 10)._replace(**run), result, "2030-01-01T00:00:00+00:00", "abc")


def test_faults_of_events() -> None:
    """Missing, duplicate, unexpected and early events are problems of a run. Its figures do not count."""
    timers = [Timer("a", call, 1000) for call in ("one", "two", "three")]
    fired = [Fired("DueTimeReached", "a", call, at) for call, at in (("one", 999), ("one", 1000), ("two", 1000))]
    found = faults(timers, [*fired, Fired("TimerExpired", "a", "two", 1000)])
    assert found == ["1 missing events", "1 duplicate events", "1 unexpected events", "1 early events"]
    benchmark = Benchmark({}, [record("drain", 900, problem=found[0]), record("drain", 3)])
    assert list(medians(benchmark.records).values()) == [{"timers/s": 3}]
    assert benchmark.problems == ["drain: 1 missing events"]


def test_frames() -> None:
    """A frame has the lengths of headers and body. Each acknowledgement counts once, and a refusal is an error."""
    sent = frame("a.b", {"Nats-Msg-Id": "1"}, b"body")
    assert sent == b"HPUB a.b _INBOX.sender 28 32\r\nNATS/1.0\r\nNats-Msg-Id: 1\r\n\r\nbody\r\n"
    stored = b'{"stream":"TIMER_CMD", "seq":17}'
    assert count_acknowledged([b"INFO {}", b"MSG _INBOX.sender 1 32", stored, b"PING", stored, b""]) == 2
    for line in (b'{"error":{"code":503},"stream":"TIMER_CMD","seq":0}', b"NATS/1.0 503", b"-ERR 'no'"):
        with pytest.raises(BenchmarkError, match="not stored"):
            count_acknowledged([line])


@pytest.mark.parametrize(
    ("measured", "row", "expected"),
    [
        ([record("drain", value) for value in (1, 50, 40)] + [record("nats-drain", 10)], ROW, [4]),
        ([record("drain", 40), record("nats-drain", 10)], ROW._replace(less_is_better=True), [0.25]),
        ([record("drain", 40), record("nats-drain", 10, sync="default")], ROW, []),
        ([record("drain", 40, store="postgres"), record("nats-drain", 10)], ROW, []),
        ([record("drain", 40), record("huey", 20, sync="none")], HUEY, [2]),
        ([record("drain", 10), record("drain", 15, instances=2)], TWO, [1.5]),
        ([record("drain", 9, size=1), record("drain", 40), record("nats-drain", 10)], ROW, [4]),
        ([record("drain", 40), record("nats-drain", 10)], ROW._replace(ours=Figure("drain", "another")), []),
    ],
)
def test_ratios(measured: list[Record], row: Row, expected: list[float]) -> None:
    """A ratio of medians is above 1 if the service is ahead. Settings, databases, sizes and instances are not mixed."""
    assert [each.ratio for each in ratios(Benchmark({}, measured), [row])] == expected


def test_published_files_show_the_published_figures(tmp_path: Path) -> None:
    """The chart and the page in the documentation show the figures of the file, which is read as it was written."""
    published = records.read(ROOT / "benchmarks" / "figures.json")
    assert (ROOT / "docs" / "figures.svg").read_text("utf-8") == chart(published)
    assert (ROOT / "benchmarks" / "figures.md").read_text("utf-8") == page(published)
    assert published.problems == []
    records.write(tmp_path / "copy.json", published)
    assert records.read(tmp_path / "copy.json") == published


@pytest.mark.parametrize(
    ("group", "rounds", "expected"),
    [
        (Group(("drain", "nats-drain"), syncs=("always",)), 2, ["drain", "nats-drain", "nats-drain", "drain"]),
        (Group(("workflows", "huey"), full=True), 1, ["workflows", "huey", "workflows"]),
        (Group(("pending",), syncs=("always",), once=True), 3, ["pending"]),
        (Group(("drain", "saq"), "postgres", ("always",), (1, 2)), 1, ["drain", "drain", "saq"]),
    ],
)
def test_order_of_runs(group: Group, rounds: int, expected: list[str]) -> None:
    """Both sides run in each round, and each is first in every second one. A peer has no settings of the service."""
    runs = plan([group], SCENARIOS, rounds)
    assert [each.scenario for each in runs] == expected
    sizes = {each.scenario: SCENARIOS[each.scenario] for each in runs}
    assert all(each.size == (sizes[each.scenario].full if group.full else sizes[each.scenario].size) for each in runs)


def test_comparison_measures_what_its_rows_need() -> None:
    """Each figure of a ratio is of a scenario and a database that the comparison measures."""
    runs = plan(COMPARISON, SCENARIOS, 1)
    needed = {(each.scenario, each.store, each.instances) for row in ROWS for each in (row.ours, row.theirs)}
    assert needed <= {(each.scenario, each.store, each.instances) for each in runs}
    assert all(each.store in SCENARIOS[each.scenario].stores for each in runs)
