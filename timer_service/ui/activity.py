"""What happened in the last hour, minute by minute. Pure: computed from the samples."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from timer_service.ui.samples import Sample

MINUTES = 60
_MINUTE_MS = 60_000


class Minute(NamedTuple):
    """One minute. A value is None if there is no sample of the minute or of the one before."""

    at: int
    """The start of the minute, in Unix milliseconds."""
    pending: int | None = None
    overdue: int | None = None
    fired: int | None = None
    failures: int | None = None
    lag_p50: float | None = None
    """Seconds. Half of the timers that fired in the minute had at most this lag, as far as the buckets tell."""
    lag_p99: float | None = None


class Activity(NamedTuple):
    """The last hour of an instance."""

    minutes: Sequence[Minute]
    """The last 60 minutes, oldest first. The last one has not ended."""
    newest: Sample | None = None
    fired_per_minute: float | None = None
    """Measured over the last minute; None while there are not two samples."""
    lag_p50: float | None = None
    """Seconds, over the last hour."""
    lag_p99: float | None = None
    failures: int = 0
    """In the last hour."""
    dead_letters: Mapping[str, int] = MappingProxyType({})
    """In the last hour, by code."""


def activity(samples: Sequence[Sample], now: int) -> Activity:
    """Return the last hour, as the samples tell it."""
    minutes = _minutes(samples, now)
    if not samples:
        return Activity(minutes)
    first, newest = samples[0], samples[-1]
    lag = _lag_between(first, newest)
    return Activity(
        minutes=minutes,
        newest=newest,
        fired_per_minute=_fired_per_minute(samples),
        lag_p50=percentile(lag, 0.5),
        lag_p99=percentile(lag, 0.99),
        failures=newest.failures - first.failures,
        dead_letters=_growth(first.dead_letters, newest.dead_letters),
    )


def percentile(buckets: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the bound below which a share of the values lies; None if there are no values.

    `buckets` has the number of values up to each bound. Between two bounds, the values count as evenly spread. Values
    above the last finite bound count as this bound.
    """
    total = buckets[-1][1] if buckets else 0
    if not total:
        return None
    wanted = total * share
    index = next(index for index, (_, count) in enumerate(buckets) if count >= wanted)
    low, below = buckets[index - 1] if index else (0.0, 0)
    high, count = buckets[index]
    return low if high == float("inf") else low + (high - low) * (wanted - below) / (count - below)


def _minutes(samples: Sequence[Sample], now: int) -> list[Minute]:
    """Return the last hour. The last sample of a minute stands for the minute."""
    of_minute = {sample.at // _MINUTE_MS: sample for sample in samples}
    newest = now // _MINUTE_MS
    numbers = range(newest - MINUTES, newest + 1)
    return [_minute(number, of_minute.get(before), of_minute.get(number)) for before, number in pairwise(numbers)]


def _minute(number: int, before: Sample | None, sample: Sample | None) -> Minute:
    """Return a minute: gauges from its sample, and counters as what they grew by since the sample before."""
    at = number * _MINUTE_MS
    if sample is None:
        return Minute(at)
    if before is None:
        return Minute(at, sample.pending, sample.overdue)
    lag = _lag_between(before, sample)
    return Minute(
        at,
        sample.pending,
        sample.overdue,
        fired=sample.fired - before.fired,
        failures=sample.failures - before.failures,
        lag_p50=percentile(lag, 0.5),
        lag_p99=percentile(lag, 0.99),
    )


def _lag_between(first: Sample, last: Sample) -> list[tuple[float, int]]:
    """Return how many timers fired between two samples with a lag up to each bound."""
    before = dict(first.lag)
    return [(bound, count - before.get(bound, 0)) for bound, count in last.lag]


def _fired_per_minute(samples: Sequence[Sample]) -> float | None:
    """Return how many timers fired per minute, from the oldest sample of the last minute to the newest one."""
    newest = samples[-1]
    oldest = next(sample for sample in samples if sample.at >= newest.at - _MINUTE_MS)
    if newest.at <= oldest.at:
        return None
    return (newest.fired - oldest.fired) * _MINUTE_MS / (newest.at - oldest.at)


def _growth(first: Mapping[str, int], last: Mapping[str, int]) -> Mapping[str, int]:
    """Return what each counter grew by, if it did."""
    grown = {name: count - first.get(name, 0) for name, count in last.items()}
    return {name: growth for name, growth in grown.items() if growth}
