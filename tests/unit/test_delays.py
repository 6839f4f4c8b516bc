"""How long things wait before their next attempt."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_service.core.values.delays import MOST_RECENT, Backoff, Delays

SECOND = timedelta(seconds=1)


class Highest(random.Random):
    """A generator that returns the highest number."""

    def random(self) -> float:
        return 1 - 2**-53


class Lowest(random.Random):
    """A generator that returns the lowest number."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (8, 128), (9, 256), (10, 300), (11, 300), (10_000, 300)]
)
def test_ceiling_doubles_up_to_the_cap(attempt: int, seconds: int) -> None:
    """The longest delay doubles with each attempt up to the cap."""
    assert Backoff().delay(attempt, Highest()) == timedelta(seconds=seconds)


@pytest.mark.parametrize("attempt", [1, 2, 10, 10_000])
def test_jitter_reaches_zero(attempt: int) -> None:
    """The jitter is full: the shortest delay is zero."""
    assert Backoff().delay(attempt, Lowest()) == timedelta(0)


@given(st.integers(1, 1000), st.integers(0, 2**32), st.integers(1, 3600), st.integers(1, 3600))
def test_delay_is_never_negative_nor_above_the_cap(attempt: int, seed: int, first: int, cap: int) -> None:
    """With any settings, a delay is never negative and never longer than the cap."""
    delay = Backoff(first * SECOND, cap * SECOND).delay(attempt, random.Random(seed))
    assert timedelta(0) <= delay <= cap * SECOND


def test_delays_are_spread() -> None:
    """Rows that fail together are not retried together: 100 delays fill every tenth of the range."""
    rng = random.Random(7)
    delays = [Backoff(10 * SECOND, 10 * SECOND).delay(1, rng) for _ in range(100)]
    assert {delay // SECOND for delay in delays} == set(range(10))


def test_the_oldest_entry_is_forgotten() -> None:
    """Beyond 20,000 things, the oldest one is forgotten. One that fails again is the newest."""
    delays = Delays()
    for key in range(MOST_RECENT):
        delays.next(key)
    assert delays.next(0) == 2 * SECOND
    delays.next("new")
    assert [delays.next(key) // SECOND for key in (0, 2, "new", 1)] == [4, 2, 2, 1]
