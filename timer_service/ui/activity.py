"""What happened in the last hour, minute by minute. Pure: computed from the samples."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timer_service.ui.samples import Sample

MINUTES = 60
_MINUTE_MS = 60_000


class Minute(NamedTuple):
    """One minute. A value is None if there is no sample of the minute, or no sample before it to compare with."""

    at: int
    """The start of the minute, in Unix milliseconds."""
    pending: int | None = None
    """The largest number in the minute, as `overdue`."""
    overdue: int | None = None
    fired: int | None = None
    failures: int | None = None
    lag_p50: float | None = None
    """Seconds. Half of the timers that fired in the minute had at most this lag, as far as the buckets tell."""
    lag_p99: float | None = None


class Activity(NamedTuple):
    """The last hour of an instance: the minutes, and what they add up to."""

    minutes: Sequence[Minute]
    """The last 60 minutes, oldest first. The last one has not ended."""
    newest: Sample
    fired: int
    failures: int
    dead_letters: Mapping[str, int]
    """By code."""
    over_quota: int
    """The commands that were refused because their tenant is at a limit."""
    lag_p50: float | None
    """Seconds."""
    lag_p99: float | None


def activity(samples: Sequence[Sample], now: int) -> Activity:
    """Return the last hour, as the samples tell it. There is at least one sample."""
    first_minute = now // _MINUTE_MS - MINUTES + 1
    newest = samples[-1]
    before_hour = next((each for each in reversed(samples) if each.at < first_minute * _MINUTE_MS), samples[0])
    lag = _lag_between(before_hour, newest)
    return Activity(
        minutes=_minutes(samples, before_hour, first_minute),
        newest=newest,
        fired=newest.fired - before_hour.fired,
        failures=newest.failures - before_hour.failures,
        dead_letters=_growth(before_hour.dead_letters, newest.dead_letters),
        over_quota=newest.over_quota - before_hour.over_quota,
        lag_p50=percentile(lag, 0.5),
        lag_p99=percentile(lag, 0.99),
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


def _minutes(samples: Sequence[Sample], before: Sample, first: int) -> list[Minute]:
    """Return the minutes from the number `first` on. `before` is the sample with which the first one is compared."""
    of_minute: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        of_minute[sample.at // _MINUTE_MS].append(sample)
    minutes: list[Minute] = []
    for number in range(first, first + MINUTES):
        found = of_minute.get(number, [])
        minutes.append(_minute(number, before, found))
        before = found[-1] if found else before
    return minutes


def _minute(number: int, before: Sample, found: Sequence[Sample]) -> Minute:
    """Return a minute: the largest gauges of its samples, and what the counters grew by since the sample before."""
    minute = Minute(
        at=number * _MINUTE_MS,
        pending=max((each.pending for each in found if each.pending is not None), default=None),
        overdue=max((each.overdue for each in found if each.overdue is not None), default=None),
    )
    if not found or found[-1] is before:
        return minute
    lag = _lag_between(before, found[-1])
    return minute._replace(
        fired=found[-1].fired - before.fired,
        failures=found[-1].failures - before.failures,
        lag_p50=percentile(lag, 0.5),
        lag_p99=percentile(lag, 0.99),
    )


def _lag_between(first: Sample, last: Sample) -> list[tuple[float, int]]:
    """Return how many timers fired between two samples with a lag up to each bound."""
    before = dict(first.lag)
    return [(bound, count - before.get(bound, 0)) for bound, count in last.lag]


def _growth(first: Mapping[str, int], last: Mapping[str, int]) -> Mapping[str, int]:
    """Return what each counter grew by, if it did."""
    grown = {name: count - first.get(name, 0) for name, count in last.items()}
    return {name: growth for name, growth in grown.items() if growth}
