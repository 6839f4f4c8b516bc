"""The numbers of the last hour: a sample of the instance's metrics every ten seconds, in bounded memory."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from timer_service.core.due.loop import Pass
from timer_service.core.limits.quotas import OVER_QUOTA

INTERVAL = timedelta(seconds=10)
_INTERVAL_MS = INTERVAL // timedelta(milliseconds=1)
_HOUR = 361
"""The samples of an hour, with both ends."""
TIMERS = "timer_schedules"
LAG = "timer_fire_lag_seconds"
LAST_TICK = "timer_loop_last_tick_timestamp_seconds"
GIVEN_UP = "timer_buried_total"
DEAD_LETTERS = "timer_dead_letters_total"
COMMANDS = "timer_commands_received_total"
EVENT_LIMITS = "timer_event_limits_reached"
ROWS = "timer_rows"
OVERDUE = "timer_overdue"
OLDEST = "timer_oldest_due_lag_seconds"


class Sample(NamedTuple):
    """The metrics of an instance at one instant. Counters count from the start of the instance."""

    at: int
    """Unix milliseconds."""
    pending: int | None
    """The timers that are Scheduled; None if this instance does not count rows."""
    overdue: int | None
    """The timers that are due and not claimed."""
    lag: tuple[tuple[float, int], ...]
    """How many timers fired with a lag of at most so many seconds, by seconds."""
    given_up: int
    """The rows that were given up, of all tables."""
    dead_letters: Mapping[str, int]
    """The dead letters, by code."""
    over_quota: int
    """The commands that were refused because their tenant is at a limit."""
    waiting: int
    """The tenants whose events wait because they have used their limit of events."""

    @property
    def fired(self) -> int:
        """The timers that fired."""
        return self.lag[-1][1] if self.lag else 0

    @property
    def failures(self) -> int:
        """The rows that were given up, and the dead letters."""
        return self.given_up + sum(self.dead_letters.values())


class Samples:
    """A worker that takes samples, and keeps those of an hour."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._kept: deque[Sample] = deque(maxlen=_HOUR)

    @property
    def all(self) -> Sequence[Sample]:
        """The samples, oldest first."""
        return tuple(self._kept)

    def until(self, now: int) -> Sequence[Sample]:
        """Return the samples and one of now, oldest first. So the page shows the same numbers as the metrics."""
        return (*self._kept, read_sample(self._registry, now))

    async def tick(self, now: int) -> Pass:
        """Take one sample."""
        self._kept.append(read_sample(self._registry, now))
        return Pass(1, now + _INTERVAL_MS)


def read_sample(registry: CollectorRegistry, now: int) -> Sample:
    """Return a sample of the metrics."""
    buckets = f"{LAG}_bucket"
    names = (ROWS, OVERDUE, buckets, GIVEN_UP, DEAD_LETTERS, COMMANDS, EVENT_LIMITS)
    found = _Series(registry.restricted_registry(names).collect())
    lag = [(float(labels["le"]), int(value)) for labels, value in found.of(buckets, table=TIMERS)]
    return Sample(
        at=now,
        pending=found.one(ROWS, table=TIMERS, state="Scheduled"),
        overdue=found.one(OVERDUE, table=TIMERS),
        lag=tuple(sorted(lag)),
        given_up=found.total(GIVEN_UP),
        dead_letters={labels["code"]: int(value) for labels, value in found.of(DEAD_LETTERS) if value},
        over_quota=found.total(COMMANDS, outcome=OVER_QUOTA),
        waiting=found.total(EVENT_LIMITS),
    )


def last_passes(registry: CollectorRegistry) -> Mapping[str, int]:
    """Return when each loop ended its last pass, in Unix milliseconds of this machine's clock."""
    found = _Series(registry.restricted_registry([LAST_TICK]).collect())
    return {labels["loop"]: int(seconds * 1000) for labels, seconds in found.of(LAST_TICK)}


def read_overdue(registry: CollectorRegistry) -> Mapping[str, tuple[int, float]]:
    """Return by table how many rows are overdue, and for how many seconds the oldest of them has been."""
    found = _Series(registry.restricted_registry([OVERDUE, OLDEST]).collect())
    oldest = {labels["table"]: seconds for labels, seconds in found.of(OLDEST)}
    return {labels["table"]: (int(count), oldest[labels["table"]]) for labels, count in found.of(OVERDUE)}


class _Series:
    """The series of some metrics."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._samples = [sample for metric in metrics for sample in metric.samples]

    def of(self, name: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the labels and the value of each series with this name and these labels."""
        return [
            (sample.labels, sample.value)
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def one(self, name: str, **labels: str) -> int | None:
        """Return the value of a series, or None if there is no such series."""
        return next((int(value) for _, value in self.of(name, **labels)), None)

    def total(self, name: str, **labels: str) -> int:
        """Return the sum of all series with this name and these labels."""
        return int(sum(value for _, value in self.of(name, **labels)))
