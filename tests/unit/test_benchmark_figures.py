"""The figures of the benchmarks: medians, ratios, the file and the chart."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import records
from benchmarks.chart import chart
from benchmarks.comparison import ROWS, Figure, Row, medians, ratios
from benchmarks.plan import COMPARISON, Group, plan
from benchmarks.records import Benchmark, Record, Run, from_json, to_json
from benchmarks.report import median_lines, page, ratio_lines, settings_of, shown
from benchmarks.result import Result
from benchmarks.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
OURS, THEIRS = Figure("drain", "timers/s"), Figure("nats-drain", "timers/s")
MORE = Row("due together", OURS, "nats-server", THEIRS)
LESS = Row("due together", OURS, "nats-server", THEIRS, less_is_better=True)


def record(
    scenario: str, value: float, *, sync: str = "always", store: str = "sqlite", size: int = 10, problem: str = ""
) -> Record:
    name = "jobs/s" if scenario == "huey" else "timers/s"
    result = Result({name: value}, [problem] if problem else [])
    return Record(Run(scenario, store, sync, size), result, "2030-01-01T00:00:00+00:00", "abc")


def measured(*each: Record) -> Benchmark:
    return Benchmark({"cpu": "2 cores"}, each)


def test_median_of_the_runs() -> None:
    """The median of a figure is over the runs with equal settings."""
    found = medians([*(record("drain", value) for value in (1, 50, 3)), record("drain", 7, sync="default")])
    assert found == {
        Run("drain", "sqlite", "always", 10): {"timers/s": 3},
        Run("drain", "sqlite", "default", 10): {"timers/s": 7},
    }


def test_runs_with_problems_do_not_count() -> None:
    """A run with a missing event has no figure, and is reported."""
    benchmark = measured(record("drain", 900, problem="1 missing events"), record("drain", 3))
    assert list(medians(benchmark.records).values()) == [{"timers/s": 3}]
    assert benchmark.problems == ["drain: 1 missing events"]


@pytest.mark.parametrize(("row", "expected"), [(MORE, 4), (LESS, 0.25)])
def test_ratio_is_above_one_if_ahead(row: Row, expected: float) -> None:
    """A ratio says how many times the service is ahead, also where less is better."""
    (found,) = ratios(measured(record("drain", 40), record("nats-drain", 10)), [row])
    assert (found.ratio, found.sync, found.runs) == (expected, "always", 1)


def test_each_sync_interval_is_compared_with_itself() -> None:
    """A figure with `sync_interval: always` is not compared with one of the default."""
    benchmark = measured(record("drain", 40), record("nats-drain", 10, sync="default"))
    assert list(ratios(benchmark, [MORE])) == []


def test_a_project_without_a_broker_is_compared() -> None:
    """A peer that has no broker is compared with the service that syncs each message."""
    row = MORE._replace(theirs=Figure("huey", "jobs/s"), other="huey", syncs=("always",))
    (found,) = ratios(measured(record("drain", 40), record("huey", 20, sync="none")), [row])
    assert (found.ratio, found.row.other) == (2, "huey")


def test_databases_are_not_mixed() -> None:
    """A figure on PostgreSQL is not compared with one on SQLite."""
    benchmark = measured(record("drain", 40, store="postgres"), record("nats-drain", 10))
    assert list(ratios(benchmark, [MORE])) == []


def test_instances_are_not_mixed() -> None:
    """Two instances are compared with one only if a row says so."""
    one, two = record("drain", 10), record("drain", 15)
    benchmark = measured(one, two._replace(run=two.run._replace(instances=2)), record("nats-drain", 10))
    more = Row("due together", OURS._replace(instances=2), "one instance", OURS)
    assert [each.ours for each in ratios(benchmark, [MORE, more]) if each.sync == "always"] == [10, 15]


def test_sizes_are_not_mixed() -> None:
    """If a scenario was measured with two sizes, the later size counts."""
    benchmark = measured(record("drain", 9, size=1), record("drain", 40), record("nats-drain", 10))
    assert [each.ours for each in ratios(benchmark, [MORE])] == [40]


def test_a_ratio_needs_both_figures() -> None:
    """A row is left out if one of its figures was not measured, although its scenario ran."""
    benchmark = measured(record("drain", 40), record("nats-drain", 10))
    assert list(ratios(benchmark, [MORE._replace(ours=Figure("drain", "another figure"))])) == []


def test_table_of_ratios() -> None:
    """The table is Markdown, with one line for each ratio."""
    benchmark = measured(record("drain", 34_900), record("nats-drain", 3320))
    header, rule, line = ratio_lines(ratios(benchmark, [MORE]))
    assert len({len(header), len(rule), len(line)}) == 1
    cells = [each.strip() for each in line.strip("|").split("|")]
    assert cells == ["due together", "always", "sqlite", "34,900", "nats-server", "3,320", "10.5", "1"]


def test_table_of_medians() -> None:
    """The table of medians has each figure of each run."""
    _, _, line = median_lines(measured(record("drain", 12.345)))
    assert [each.strip() for each in line.strip("|").split("|")][3:] == ["10", "timers/s", "12.3"]


@pytest.mark.parametrize(
    ("value", "text"), [(34_912.4, "34,912"), (5, "5"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012")]
)
def test_shown_digits(value: float, text: str) -> None:
    """A figure has no more digits than a reader needs."""
    assert shown(value) == text


def test_file_keeps_everything(tmp_path: Path) -> None:
    """A file that is written and read holds the same runs, and more can be added."""
    benchmark = measured(record("drain", 1.5, problem="1 early events"), record("huey", 2, sync="none"))
    file = tmp_path / "benchmark.json"
    records.write(file, benchmark)
    read = records.read(file)
    assert to_json(read) == to_json(benchmark)
    more = read.with_record(record("drain", 3))
    assert [each.run.scenario for each in from_json(to_json(more)).records] == ["drain", "huey", "drain"]
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_setting_names_the_revisions() -> None:
    """If runs of two revisions are in one file, the report names both."""
    benchmark = measured(record("drain", 1), record("drain", 1)._replace(revision="def"))
    assert settings_of(benchmark) == {"cpu": "2 cores", "revision": "abc, def"}


def test_chart_has_a_bar_for_each_figure() -> None:
    """The chart has bars for what was measured. Their lengths are in proportion."""
    drawn = ET.fromstring(chart(measured(record("drain", 400), record("nats-drain", 100))))
    bars = [each for each in drawn.iter(f"{SVG}rect") if each.get("class") in {"ours", "others"}]
    ours, theirs = (float(each.get("width", 0)) for each in bars)
    assert [each.get("class") for each in bars] == ["ours", "others"]
    assert ours == pytest.approx(4 * theirs, rel=0.01)
    texts = {each.text for each in drawn.iter(f"{SVG}text")}
    assert {"timer_service, SQLite, synced", "400", "nats-server, synced", "100"} <= texts


def test_chart_is_readable_in_both_schemes() -> None:
    """The chart has a background of its own, and colours for dark pages."""
    drawn = chart(measured(record("drain", 400)))
    assert "prefers-color-scheme: dark" in drawn
    assert drawn.count(".page { fill:") == 2


def test_chart_fits_its_panels() -> None:
    """The longest bar and its number end before the other panel begins."""
    drawn = ET.fromstring(chart(measured(record("drain", 1_234_567))))
    (bar,) = (each for each in drawn.iter(f"{SVG}rect") if each.get("class") == "ours")
    assert float(bar.get("x", 0)) + float(bar.get("width", 0)) + 9 * 7 < 400


def test_published_files_show_the_published_figures() -> None:
    """The chart and the page in the documentation show the figures of the file in the repository."""
    published = records.read(ROOT / "benchmarks" / "figures.json")
    assert (ROOT / "docs" / "figures.svg").read_text("utf-8") == chart(published)
    assert (ROOT / "docs" / "figures.md").read_text("utf-8") == page(published)
    assert published.problems == []


def test_scenarios_of_a_group_take_turns() -> None:
    """Both sides run in each round, and each is first in every second round."""
    runs = plan([Group(("drain", "nats-drain"), syncs=("always",))], SCENARIOS, 2)
    assert [each.scenario for each in runs] == ["drain", "nats-drain", "nats-drain", "drain"]
    assert {each.size for each in runs} == {SCENARIOS["drain"].size}


def test_a_peer_runs_once_in_a_round() -> None:
    """A scenario without a broker runs once in a round, and not once for each setting of the broker."""
    runs = plan([Group(("workflows", "huey"), full=True)], SCENARIOS, 1)
    found = [(each.scenario, each.sync, each.size) for each in runs]
    full = SCENARIOS["workflows"].full
    assert found == [
        ("workflows", "always", full),
        ("huey", "none", SCENARIOS["huey"].full),
        ("workflows", "default", full),
    ]


def test_slow_groups_run_once() -> None:
    """A group that is marked runs in the first round only."""
    runs = plan([Group(("pending",), syncs=("always",), once=True)], SCENARIOS, 3)
    assert len(runs) == 1


def test_numbers_of_instances_take_turns() -> None:
    """A scenario of a group runs with each number of instances. A peer, which has none, runs once."""
    group = Group(("drain", "saq"), "postgres", ("always",), instances=(1, 2))
    found = [(each.scenario, each.instances) for each in plan([group], SCENARIOS, 2)]
    assert found == [("drain", 1), ("drain", 2), ("saq", 1), ("saq", 1), ("drain", 2), ("drain", 1)]


def test_comparison_measures_what_its_rows_need() -> None:
    """Each figure of a ratio is of a scenario and a database that the comparison measures."""
    runs = plan(COMPARISON, SCENARIOS, 1)
    needed = {(each.scenario, each.store, each.instances) for row in ROWS for each in (row.ours, row.theirs)}
    assert needed <= {(each.scenario, each.store, each.instances) for each in runs}
    assert all(each.store in SCENARIOS[each.scenario].stores for each in runs)
