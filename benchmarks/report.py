"""The report of a benchmark, as Markdown: the ratios, the setting and all medians."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.comparison import Ratio, medians, ratios
from benchmarks.records import Benchmark, Run


def page(benchmark: Benchmark) -> str:
    """Return the page of the documentation."""
    dates = sorted(each.at[:10] for each in benchmark.records)
    lines = [
        "# Figures",
        "",
        "`make bench` wrote this page. A ratio above 1 means that the service is ahead.",
        "[Performance](../docs/performance.md) explains the figures, and [README.md](README.md)",
        "says what each scenario measures. [figures.json](figures.json) has every figure of every run.",
        "",
        "## Ratios",
        "",
        *ratio_lines(ratios(benchmark)),
        "",
        "## Setting",
        "",
        *_table([("", ""), *settings_of(benchmark).items(), ("measured", " to ".join(sorted({dates[0], dates[-1]})))]),
    ]
    return "\n".join(lines) + "\n"


def ratio_lines(found: Iterable[Ratio]) -> Iterator[str]:
    """Yield a Markdown table of the ratios."""
    header = ("", "broker", "sync", "database", "timer_service", "", "other", "ratio", "runs")
    cells = [
        (
            each.row.what,
            each.row.ours.broker,
            each.sync,
            each.row.ours.store,
            shown(each.ours),
            each.row.other,
            shown(each.theirs),
            f"{each.ratio:.3g}",
            str(each.runs),
        )
        for each in found
    ]
    if cells:
        yield from _table([header, *cells])


def median_lines(benchmark: Benchmark) -> Iterator[str]:
    """Yield a Markdown table of all medians."""
    header = ("scenario", "broker", "database", "sync", "size", "figure", "median")
    cells = [
        (run.scenario, run.broker, _with_instances(run), run.sync, f"{run.size:,}", name, shown(value))
        for run, figures in medians(benchmark.records).items()
        for name, value in figures.items()
    ]
    if cells:
        yield from _table([header, *cells])


def _with_instances(run: Run) -> str:
    return run.store if run.instances == 1 else f"{run.store}, {run.instances} instances"


def shown(value: float) -> str:
    """Return a figure with as many digits as a reader needs."""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        if number == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def settings_of(benchmark: Benchmark) -> Mapping[str, str]:
    """Return the setting, with the revisions that were measured."""
    revisions = sorted({each.revision for each in benchmark.records if each.revision})
    return {**benchmark.setting, **({"revision": ", ".join(revisions)} if revisions else {})}
