"""How much of its limit of events a tenant has used, and when it may go on."""

import random

import pytest

from timer_service.core.limits.event_level import Level, Limit, is_waiting, take

DAY = 24 * 60 * 60 * 1000
LIMIT = Limit(most=1_000_000, period_ms=10 * DAY)
NEW = Level(0, 0, 0)
NOW = 1_000 * DAY


def test_a_part_is_taken_at_a_time() -> None:
    """A tenant that wants little gets a part of its limit, so that few rows are written."""
    taken = take(NEW, LIMIT, 10, NOW)
    assert (taken.amount, taken.again_at) == (LIMIT.most // 64, None)
    assert taken.level.used_at(NOW) == taken.amount


def test_whole_limit_at_once() -> None:
    """A tenant that has used nothing gets its whole limit at once, and no more."""
    taken = take(NEW, LIMIT, 2 * LIMIT.most, NOW)
    assert taken.amount == LIMIT.most
    assert taken.again_at is not None
    assert take(taken.level, LIMIT, 1, NOW).amount == 0


def test_what_was_used_comes_back_evenly() -> None:
    """After half of the time, half is back; after the whole time, all of it."""
    level = take(NEW, LIMIT, LIMIT.most, NOW).level
    assert [level.used_at(NOW + days * DAY) for days in (0, 5, 9, 10, 11)] == [1_000_000, 500_000, 100_000, 0, 0]


def test_a_tenant_waits_for_a_thousandth() -> None:
    """A tenant that has used everything waits until a thousandth is back, but ten minutes at most, and then gets it."""
    limit = Limit(10_000_000, DAY)
    level, _, again_at = take(NEW, limit, 20_000_000, NOW)
    assert again_at == NOW + DAY // 1000
    assert take(level, limit, 50_000, again_at - 1000).amount == 0
    assert take(level, limit, 50_000, again_at).amount == 10_000
    assert take(NEW, LIMIT, 2 * LIMIT.most, NOW).again_at == NOW + 10 * 60_000


def test_small_limits() -> None:
    """Of a small limit, some events must be back before the tenant goes on, not a thousandth of one."""
    limit = Limit(80_000, DAY // 100)
    level, _, again_at = take(NEW, limit, 160_000, NOW)
    assert again_at == NOW + 44_237
    assert take(level, limit, 50_000, again_at).amount == 4096
    assert take(NEW, Limit(80, DAY // 100), 90, NOW).again_at == NOW + DAY // 800


def test_a_denial_writes_nothing() -> None:
    """A tenant that gets nothing keeps its level. Otherwise each look would round in its disfavour."""
    level = take(NEW, LIMIT, LIMIT.most, NOW).level
    assert take(level, LIMIT, 10, NOW + 50).level is level


def test_limit_that_was_raised_or_lowered() -> None:
    """A higher limit makes room at once. With a lower one, a tenant waits until less than that is used."""
    level = take(NEW, LIMIT, LIMIT.most, NOW).level
    assert take(level, Limit(3_000_000, LIMIT.period_ms), 2_000_000, NOW).amount == 2_000_000
    assert take(level, Limit(100_000, LIMIT.period_ms), 1, NOW + 8 * DAY).amount == 0
    assert take(level, Limit(100_000, LIMIT.period_ms), 1, NOW + 9 * DAY + DAY // 2).amount > 0


def test_limit_of_zero() -> None:
    """A tenant with a limit of 0 never gets anything."""
    assert take(NEW, Limit(0, DAY), 1, NOW).amount == 0


def test_every_instant_fits_into_the_database() -> None:
    """A tenant has used much, its limit becomes tiny, and the clock is set back: the level is written again."""
    level = Level(10**15, NOW + 1, NOW + DAY)
    assert NOW < take(level, Limit(0, 10 * DAY), 1, NOW).level.empty_at < 2**63


def test_clock_that_was_set_back() -> None:
    """After the clock was set back by a year, a full level comes back from then on: no tenant waits for that year."""
    level = take(NEW, LIMIT, LIMIT.most, NOW + 365 * DAY).level
    corrected = take(level, LIMIT, 1, NOW)
    assert corrected.amount == 0
    assert corrected.level.used_at(NOW + 5 * DAY) == LIMIT.most // 2
    assert not is_waiting(NOW + 365 * DAY, NOW)


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_twice_the_limit_in_the_period(seed: int) -> None:
    """Whatever a tenant wants and when, it gets at most twice its limit in the time for which events are kept.

    It gets at least what comes back, if it always wants more.
    """
    rng = random.Random(seed)
    limit = Limit(rng.choice([10_000, 1_000_000]), DAY)
    level, now, got = NEW, NOW, list[tuple[int, int]]()
    while now < NOW + 4 * DAY:
        level, amount, _ = take(level, limit, rng.choice([1, 500, limit.most // 10, 2 * limit.most]), now)
        got.append((now, amount))
        now += rng.randrange(DAY // 50)
    for at, _ in got:
        assert sum(amount for when, amount in got if at - DAY < when <= at) <= 2 * limit.most
    assert sum(amount for _, amount in got) >= 3.5 * limit.most
