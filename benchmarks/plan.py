"""Which scenarios run, with which settings and in which order."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.comparison import NO_BROKER, SYNCS, syncs_of
from benchmarks.peers.scenarios import PEERS
from benchmarks.records import Run
from benchmarks.scenarios import Scenario


class Group(NamedTuple):
    """Scenarios that run in turns."""

    scenarios: Sequence[str]
    store: str = "sqlite"
    syncs: Sequence[str] = SYNCS
    instances: Sequence[int] = (1,)
    """How many instances of the service there are. The scenarios run with each number."""
    full: bool = False
    """Whether they run with their full size."""
    once: bool = False
    """Whether they run in the first round only."""
    broker: str = "nats"
    size: int | None = None
    """None: the size of each scenario."""


COMPARISON = (
    Group(("drain", "nats-drain")),
    Group(("lag", "nats-lag")),
    Group(("lag-2000", "nats-lag-2000"), syncs=("always",)),
    Group(("fair", "nats-fair"), full=True),
    Group(("ingest", "accept", "nats-accept")),
    Group(("signals", "runs"), syncs=("always",)),
    Group(("drain", "lag", "pgqueuer", "procrastinate", "saq"), "postgres", ("always",), (1, 2)),
    Group(("workflows", "steps", "dbos", "huey"), syncs=("always",)),
    Group(("drain", "lag", "ingest", "faststream-redis-timers", "arq", "saq-redis", "bullmq"), broker="redis"),
    Group(("drain", "ingest"), syncs=syncs_of("rabbitmq"), broker="rabbitmq", size=20_000),
    Group(("lag", "celery"), syncs=syncs_of("rabbitmq"), broker="rabbitmq"),
    Group(("retention", "idle"), syncs=("always",), once=True),
    Group(("pending",), syncs=("always",), full=True, once=True),
)
"""What `make bench` measures without arguments. `comparison.ROWS` has the ratios of it."""


def plan(groups: Sequence[Group], scenarios: Mapping[str, Scenario], rounds: int) -> list[Run]:
    """Return the runs in their order. The scenarios of a group take turns, so that both sides meet the same machine.

    Every second round is in the opposite order: whichever comes first on a shared machine is ahead.
    """
    runs: list[Run] = []
    for group in groups:
        forth = list(_round(group, scenarios))
        for number in range(1 if group.once else rounds):
            runs += forth if number % 2 == 0 else forth[::-1]
    return runs


def _round(group: Group, scenarios: Mapping[str, Scenario]) -> Iterator[Run]:
    for sync in group.syncs:
        for name in group.scenarios:
            scenario = scenarios[name]
            size = group.size or (scenario.full if group.full else scenario.size)
            if scenario.brokers:
                counts = (1,) if name in PEERS else group.instances
                yield from (Run(name, group.store, sync, size, instances, group.broker) for instances in counts)
            elif sync == group.syncs[0]:
                yield Run(name, group.store, NO_BROKER, size)


def seconds(runs: Sequence[Run], scenarios: Mapping[str, Scenario]) -> int:
    """Return about how long runs with the default sizes take."""
    return sum(scenarios[run.scenario].seconds for run in runs)
