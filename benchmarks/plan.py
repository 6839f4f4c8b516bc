"""Which scenarios run, with which settings and in which order."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.comparison import NO_BROKER, SYNCS
from benchmarks.records import Run
from benchmarks.scenarios import Scenario


class Group(NamedTuple):
    """Scenarios that run in turns."""

    scenarios: Sequence[str]
    store: str = "sqlite"
    syncs: Sequence[str] = SYNCS
    once: bool = False
    """Whether they run in the first round only."""


COMPARISON = (
    Group(("drain", "nats-drain")),
    Group(("lag", "nats-lag")),
    Group(("lag-2000", "nats-lag-2000"), syncs=("always",)),
    Group(("fair", "nats-fair")),
    Group(("ingest", "accept", "nats-accept")),
    Group(("drain", "lag", "pgqueuer", "procrastinate", "saq"), "postgres", ("always",)),
    Group(("workflows", "steps", "dbos", "huey"), syncs=("always",)),
    Group(("retention", "pending", "idle"), syncs=("always",), once=True),
)
"""What `make bench` measures without arguments. `comparison.ROWS` has the ratios of it."""


def plan(
    groups: Sequence[Group], scenarios: Mapping[str, Scenario], rounds: int, *, full: bool, instances: int = 1
) -> list[Run]:
    """Return the runs in their order. The scenarios of a group take turns, so that both sides meet the same machine."""
    runs: list[Run] = []
    for group in groups:
        for _ in range(1 if group.once else rounds):
            runs += _round(group, scenarios, full=full, instances=instances)
    return runs


def _round(group: Group, scenarios: Mapping[str, Scenario], *, full: bool, instances: int) -> list[Run]:
    runs = []
    for sync in group.syncs:
        for name in group.scenarios:
            scenario = scenarios[name]
            size = scenario.full if full else scenario.size
            if scenario.broker:
                runs.append(Run(name, group.store, sync, size, instances))
            elif sync == group.syncs[0]:
                runs.append(Run(name, group.store, NO_BROKER, size))
    return runs


def seconds(runs: Sequence[Run], scenarios: Mapping[str, Scenario]) -> int:
    """Return about how long runs with the default sizes take."""
    return sum(scenarios[run.scenario].seconds for run in runs)
