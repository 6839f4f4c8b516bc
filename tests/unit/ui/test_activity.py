"""The last hour, computed from samples."""

import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.clock import NOW
from timer_service.metrics import Metrics
from timer_service.ui import samples
from timer_service.ui.activity import activity, percentile
from timer_service.ui.samples import Sample, Samples, last_passes

MINUTE = 60_000
EMPTY = Sample(at=NOW, pending=None, overdue=None, lag=(), given_up=0, dead_letters={}, over_quota=0, waiting=0)


def fired(at: int, count: int, **more: Any) -> Sample:
    return EMPTY._replace(at=at, lag=((0.001, 0), (0.01, count), (float("inf"), count)), **more)


def test_counters_become_growth() -> None:
    """Counters are shown as what they grew by in each minute, and gauges as they are."""
    start = NOW // MINUTE * MINUTE
    of_one_minute = [fired(start - MINUTE, 130, pending=8), fired(start - 10_000, 140, pending=1)]
    hour = activity([fired(start - 3 * MINUTE, 100, pending=7), *of_one_minute, fired(start, 190)], start)
    assert [minute.fired for minute in hour.minutes[-4:]] == [None, None, 40, 50]
    assert [minute.pending for minute in hour.minutes[-4:]] == [7, None, 8, None]
    assert [minute.at for minute in hour.minutes] == [start - ago * MINUTE for ago in range(59, -1, -1)]


def test_numbers_agree() -> None:
    """The numbers of the hour are those of its minutes together, and no number is above its largest one."""
    start = NOW // MINUTE * MINUTE - 62 * MINUTE
    samples = [
        fired(start + number * 10_000, number * number, pending=number, given_up=number // 7) for number in range(375)
    ]
    for now in (samples[0].at, samples[1].at, samples[40].at, samples[-1].at):
        kept = [each for each in samples if each.at <= now][-361:]
        hour = activity(kept, now)
        assert hour.fired == sum(minute.fired or 0 for minute in hour.minutes)
        assert hour.failures == sum(minute.failures or 0 for minute in hour.minutes)
        assert hour.newest.pending == max(minute.pending or 0 for minute in hour.minutes)
        assert (hour.lag_p99 or 0) <= max(minute.lag_p99 or 0 for minute in hour.minutes)


def test_dead_letters_of_the_hour() -> None:
    """Dead letters are counted by code within the hour, not before it."""
    old = EMPTY._replace(at=NOW - 61 * MINUTE, dead_letters={"TOO_LARGE": 3})
    new = EMPTY._replace(at=NOW - 1000, dead_letters={"TOO_LARGE": 3, "INVALID_JSON": 2})
    hour = activity([old, new, new._replace(at=NOW)], NOW)
    assert (hour.dead_letters, hour.failures) == ({"INVALID_JSON": 2}, 2)


@pytest.mark.parametrize(
    ("share", "seconds"), [(0.5, 0.0055), (0.9, 0.0091), (0.99, 0.01)], ids=["median", "inside", "slow one"]
)
def test_percentile(share: float, seconds: float) -> None:
    """A percentile lies within the bucket of its value. Values above the last bound count as this bound."""
    buckets = [(0.001, 0), (0.01, 100), (float("inf"), 100 if share < 0.95 else 200)]
    assert percentile(buckets, share) == pytest.approx(seconds)


async def test_samples_are_bounded() -> None:
    """The samples of an hour are kept, and no more."""
    kept = Samples(CollectorRegistry())
    for at in range(NOW, NOW + 4_000_000, 10_000):
        assert await kept.tick(at) == (1, at + 10_000)
    assert len(kept.all) == 361
    assert kept.all[-1].at - kept.all[0].at == 60 * MINUTE
    assert [each.at for each in kept.until(NOW + 4_000_001)[-2:]] == [kept.all[-1].at, NOW + 4_000_001]


async def test_samples_read_the_metrics() -> None:
    """A sample has the numbers of the service's metrics: fired timers only, not other tables."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.fired_late("timer_schedules", 0.003)
    metrics.fired_late("outbox", 0.003)
    metrics.fired_late("outbox", 0.003)
    metrics.counted("timer_schedules", "Scheduled", 5)
    metrics.overdue("outbox", 7, 1.5)
    metrics.overdue("timer_schedules", 2, 1.5)
    metrics.buried("outbox", 1)
    metrics.dead_letter_stored("TOO_LARGE")
    metrics.command_handled("ScheduleTimer", "scheduled", 9)
    metrics.command_handled("ScheduleTimer", "over_quota", 2)
    metrics.command_handled("StartRun", "over_quota")
    metrics.event_limits_reached(4)
    metrics.ticked("timers", 0.1)
    sample = samples.read_sample(registry, NOW)
    assert (sample.pending, sample.overdue, sample.fired, sample.failures) == (5, 2, 1, 2)
    assert sample.dead_letters == {"TOO_LARGE": 1}
    assert (sample.over_quota, sample.waiting) == (3, 4)
    assert abs(last_passes(registry)["timers"] - time.time() * 1000) < MINUTE
