"""The ratios: a figure of the service beside the figure of another project, both as medians of the runs."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.records import Benchmark, Record, Run

SYNCS = ("always", "default")


def syncs_of(broker: str, syncs: Sequence[str] = SYNCS) -> Sequence[str]:
    """Return which of the settings a broker has. RabbitMQ has only its default."""
    return ("default",) if broker == "rabbitmq" else syncs


class Figure(NamedTuple):
    """A figure of a scenario."""

    scenario: str
    name: str
    store: str = "sqlite"
    instances: int = 1
    broker: str = "nats"


class Row(NamedTuple):
    """What is compared. `other` is the name of the other project."""

    what: str
    ours: Figure
    other: str
    theirs: Figure
    less_is_better: bool = False
    syncs: Sequence[str] = SYNCS
    """The settings of the broker. A figure that has nothing to do with the broker is compared with each of them."""


class Ratio(NamedTuple):
    """A row with its medians. The ratio is above 1 if the service is ahead."""

    row: Row
    sync: str
    ours: float
    theirs: float
    runs: int
    """The number of runs behind the median that has fewer."""

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours if self.row.less_is_better else self.ours / self.theirs


_P50, _P99 = "lateness p50, ms", "lateness p99, ms"
_PEER_P50, _PEER_P99 = "lateness p50 at 200/s, ms", "lateness p99 at 200/s, ms"
_SINGLE = "lateness of the other tenant's timer, ms"
_NATS = "nats-server"
_PEER_STORES = {"pgqueuer": "postgres", "procrastinate": "postgres", "saq": "postgres", "huey": "sqlite"}
_REDIS_PEERS = ("faststream-redis-timers", "arq", "saq-redis", "bullmq")
NO_BROKER = "none"
"""The `sync` of a scenario without a broker."""


def _peer_rows(
    peer: str, store: str = "sqlite", broker: str = "nats", syncs: Sequence[str] = ("always",)
) -> tuple[Row, ...]:
    ours, theirs = Figure("drain", "timers/s", store, 1, broker), Figure(peer, "jobs/s", store, 1, broker)
    p50, p99 = theirs._replace(name=_PEER_P50), theirs._replace(name=_PEER_P99)
    lag = ours._replace(scenario="lag")
    return (
        Row("due together, per second", ours, peer, theirs, syncs=syncs),
        Row("lag p50 at 200/s, ms", lag._replace(name=_P50), peer, p50, less_is_better=True, syncs=syncs),
        Row("lag p99 at 200/s, ms", lag._replace(name=_P99), peer, p99, less_is_better=True, syncs=syncs),
    )


ROWS = (
    Row("due together, per second", Figure("drain", "timers/s"), _NATS, Figure("nats-drain", "timers/s")),
    Row("lag p50 at 200/s, ms", Figure("lag", _P50), _NATS, Figure("nats-lag", _P50), less_is_better=True),
    Row("lag p99 at 200/s, ms", Figure("lag", _P99), _NATS, Figure("nats-lag", _P99), less_is_better=True),
    Row("lag p99 at 2,000/s, ms", Figure("lag-2000", _P99), _NATS, Figure("nats-lag-2000", _P99), less_is_better=True),
    Row("one timer in a flood, ms", Figure("fair", _SINGLE), _NATS, Figure("nats-fair", _SINGLE), less_is_better=True),
    Row(
        "accepted from a client, per second",
        Figure("accept", "commands/s"),
        _NATS,
        Figure("nats-accept", "schedules/s"),
    ),
    Row(
        "accepted from a backlog, per second",
        Figure("ingest", "commands/s"),
        _NATS,
        Figure("nats-accept", "schedules/s"),
    ),
    Row(
        "deleted by retention, per second",
        Figure("retention", "rows deleted/s"),
        "its own drain",
        Figure("drain", "timers/s"),
        syncs=("always",),
    ),
    Row(
        "due together, two instances, per second",
        Figure("drain", "timers/s", "postgres", instances=2),
        "one instance",
        Figure("drain", "timers/s", "postgres"),
        syncs=("always",),
    ),
    *(row for peer, store in _PEER_STORES.items() for row in _peer_rows(peer, store)),
    *(row for peer in _REDIS_PEERS for row in _peer_rows(peer, broker="redis", syncs=syncs_of("redis"))),
    *_peer_rows("celery", broker="rabbitmq", syncs=syncs_of("rabbitmq")),
    Row(
        "workflows of one step, per second",
        Figure("workflows", "workflows/s"),
        "dbos",
        Figure("dbos", "workflows/s"),
        syncs=("always",),
    ),
    Row(
        "steps of one workflow, per second",
        Figure("steps", "steps/s"),
        "dbos",
        Figure("dbos", "steps/s"),
        syncs=("always",),
    ),
)


def medians(records: Iterable[Record]) -> dict[Run, dict[str, float]]:
    """Return the median of each figure, for runs without problems."""
    values: dict[Run, dict[str, list[float]]] = {}
    for record in records:
        if not record.result.problems:
            for name, value in record.result.figures.items():
                values.setdefault(record.run, {}).setdefault(name, []).append(value)
    return {run: {name: statistics.median(each) for name, each in figures.items()} for run, figures in values.items()}


def ratios(benchmark: Benchmark, rows: Sequence[Row] = ROWS) -> Iterator[Ratio]:
    """Yield the ratios of the rows whose figures were measured."""
    found = {_place(run, run.sync): (run, figures) for run, figures in medians(benchmark.records).items()}
    counts = _counts(benchmark.records)
    for row in rows:
        for sync in row.syncs:
            ours = found.get(_place(row.ours, sync))
            theirs = found.get(_place(row.theirs, sync)) or found.get(_place(row.theirs, NO_BROKER))
            if ours and theirs and row.ours.name in ours[1] and row.theirs.name in theirs[1]:
                values = ours[1][row.ours.name], theirs[1][row.theirs.name]
                yield Ratio(row, sync, *values, min(counts[ours[0]], counts[theirs[0]]))


def _place(measured: Figure | Run, sync: str) -> tuple[str, str, str, int, str]:
    return (measured.scenario, measured.store, sync, measured.instances, measured.broker)


def _counts(records: Iterable[Record]) -> dict[Run, int]:
    counts: dict[Run, int] = {}
    for record in records:
        counts[record.run] = counts.get(record.run, 0) + (not record.result.problems)
    return counts


def figures_of(benchmark: Benchmark, figure: Figure, sync: str) -> float | None:
    """Return the median of a figure; None if it was not measured."""
    for run, figures in medians(benchmark.records).items():
        if _place(run, run.sync) == _place(figure, sync):
            return figures.get(figure.name)
    return None
