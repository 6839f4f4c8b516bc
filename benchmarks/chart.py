"""The chart of the comparison, as SVG. It has its own background, so it is readable on light and dark pages."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.comparison import NO_BROKER, Figure, figures_of
from benchmarks.records import Benchmark
from benchmarks.report import shown

_WIDTH = 800
_BAR, _ROW = 14, 22
_HEAD = 40
_LABEL, _VALUE = 192, 66
_PANEL = _WIDTH // 2
_MARGIN = 14
_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; }
.page { fill: #ffffff; }
.ours { fill: #3451b2; }
.others { fill: #a3adba; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .page { fill: #161b22; }
  .ours { fill: #849dff; }
  .others { fill: #57606a; }
}
"""


class Bar(NamedTuple):
    """A bar of a panel."""

    label: str
    value: float
    ours: bool


class _Source(NamedTuple):
    """Where a bar comes from."""

    label: str
    figure: Figure
    sync: str
    ours: bool = False


_RATES = (
    _Source("timer_service, SQLite, synced", Figure("drain", "timers/s"), "always", ours=True),
    _Source("timer_service, SQLite", Figure("drain", "timers/s"), "default", ours=True),
    _Source("timer_service, PostgreSQL", Figure("drain", "timers/s", "postgres"), "always", ours=True),
    _Source("nats-server, synced", Figure("nats-drain", "timers/s"), "always"),
    _Source("nats-server", Figure("nats-drain", "timers/s"), "default"),
    _Source("pgqueuer, PostgreSQL", Figure("pgqueuer", "jobs/s", "postgres"), NO_BROKER),
    _Source("huey, SQLite", Figure("huey", "jobs/s"), NO_BROKER),
    _Source("saq, PostgreSQL", Figure("saq", "jobs/s", "postgres"), NO_BROKER),
    _Source("procrastinate, PostgreSQL", Figure("procrastinate", "jobs/s", "postgres"), NO_BROKER),
)
_LAG, _PEER_LAG = "lateness p99, ms", "lateness p99 at 200/s, ms"
_LAGS = (
    _Source("timer_service, SQLite, synced", Figure("lag", _LAG), "always", ours=True),
    _Source("timer_service, SQLite", Figure("lag", _LAG), "default", ours=True),
    _Source("timer_service, PostgreSQL", Figure("lag", _LAG, "postgres"), "always", ours=True),
    _Source("nats-server, synced", Figure("nats-lag", _LAG), "always"),
    _Source("nats-server", Figure("nats-lag", _LAG), "default"),
    _Source("pgqueuer, PostgreSQL", Figure("pgqueuer", _PEER_LAG, "postgres"), NO_BROKER),
    _Source("huey, SQLite", Figure("huey", _PEER_LAG), NO_BROKER),
    _Source("saq, PostgreSQL", Figure("saq", _PEER_LAG, "postgres"), NO_BROKER),
    _Source("procrastinate, PostgreSQL", Figure("procrastinate", _PEER_LAG, "postgres"), NO_BROKER),
)


def chart(benchmark: Benchmark) -> str:
    """Return two panels: how many timers fire per second, and how late a timer is."""
    rates, lags = _bars(benchmark, _RATES), _bars(benchmark, _LAGS)
    height = _HEAD + _ROW * max(len(rates), len(lags)) + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(_summary(rates, lags))}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" rx="6"/>',
        *_panel("Due at one instant: fired per second", rates, 0),
        *_panel("Lag p99 at 200 per second, ms (less is better)", lags, _PANEL),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bars(benchmark: Benchmark, sources: Sequence[_Source]) -> list[Bar]:
    values = [(each, figures_of(benchmark, each.figure, each.sync)) for each in sources]
    return [Bar(each.label, value, each.ours) for each, value in values if value is not None]


def _panel(title: str, bars: Sequence[Bar], left: int) -> Iterator[str]:
    """Yield the elements of a panel. The longest bar has the whole width."""
    yield f'<text class="title" x="{left + _MARGIN}" y="24">{escape(title)}</text>'
    longest = max((bar.value for bar in bars), default=1)
    space = _PANEL - _MARGIN - _LABEL - _VALUE
    for number, bar in enumerate(bars):
        y = _HEAD + _ROW * number
        width = max(space * bar.value / longest, 1)
        start = left + _MARGIN + _LABEL
        yield f'<text x="{left + _MARGIN}" y="{y + 11}">{escape(bar.label)}</text>'
        yield (
            f'<rect class="{"ours" if bar.ours else "others"}" x="{start}" y="{y}" '
            f'width="{width:.1f}" height="{_BAR}" rx="2"/>'
        )
        yield f'<text x="{start + width + 5:.1f}" y="{y + 11}">{shown(bar.value)}</text>'


def _summary(rates: Sequence[Bar], lags: Sequence[Bar]) -> str:
    """Return the chart as text, for readers who cannot see it."""
    return "Fired per second: {}. Lag p99 in ms: {}.".format(
        *("; ".join(f"{bar.label} {shown(bar.value)}" for bar in bars) for bars in (rates, lags))
    )
