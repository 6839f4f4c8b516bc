"""How much of its limit of events a tenant has used, and when it may go on."""

import random

import pytest

from timer_service.core.limits.event_allowances import Level

DAY = 24 * 60 * 60 * 1000
MOST = 1_000_000
PERIOD = 10 * DAY
NOW = 1_000 * DAY
FULL = Level().charged(MOST, MOST, PERIOD, NOW)
BEYOND = FULL.charged(200_000, MOST, PERIOD, NOW)


def test_what_was_used_comes_back_evenly() -> None:
    """A tenant may use its whole limit. What it uses beyond that comes back before it goes on."""
    assert [FULL.used_at(NOW + days * DAY) for days in (0, 5, 9, 10, 11)] == [1_000_000, 500_000, 100_000, 0, 0]
    assert [FULL.again_at(MOST, NOW), BEYOND.again_at(MOST, NOW)] == [None, NOW + 2 * DAY]
    assert (BEYOND.used_at(NOW + 2 * DAY), BEYOND.again_at(MOST, NOW + 2 * DAY)) == (MOST, None)


def test_limit_that_was_raised_or_lowered() -> None:
    """A higher limit makes room at once. With a lower one, a tenant waits until no more than that is used."""
    assert [BEYOND.again_at(3_000_000, NOW), FULL.again_at(100_000, NOW)] == [None, NOW + 9 * DAY]
    assert NOW < Level(10**15, NOW - 1, NOW + DAY).charged(1, 0, PERIOD, NOW).empty_at < 2**63


def test_clock_that_was_set_back() -> None:
    """After the clock was set back by a minute, nothing has come back yet; by a year, the level counts no more."""
    assert (BEYOND.used_at(NOW - 60_000), BEYOND.again_at(MOST, NOW - 365 * DAY)) == (1_200_000, None)
    assert BEYOND.charged(10, MOST, PERIOD, NOW - 365 * DAY).used == 10


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_twice_the_limit_in_the_period(seed: int) -> None:
    """Whatever a tenant publishes and when, it has at most twice its limit and a claim in the time of the events.

    It gets at least what comes back, if it always wants more.
    """
    rng = random.Random(seed)
    most = rng.choice([10_000, 1_000_000])
    level, now, got = Level(), NOW, list[tuple[int, int]]()
    while now < NOW + 4 * DAY:
        if level.again_at(most, now) is None:
            amount = rng.choice([1, 500, most // 10])
            level = level.charged(amount, most, DAY, now)
            got.append((now, amount))
        now += rng.randrange(DAY // 100)
    for at, _ in got:
        assert sum(amount for when, amount in got if at - DAY < when <= at) <= 2 * most + most // 10
    assert sum(amount for _, amount in got) >= 3 * most
