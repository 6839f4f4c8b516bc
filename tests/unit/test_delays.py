"""How long things wait before their next attempt."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_service.core.values.delays import MOST_RECENT, Backoff, Delays

SECOND = timedelta(seconds=1)


class Fixed(random.Random):
    """A generator that returns one number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (10_000, 300)])
def test_delays_between_zero_and_a_ceiling(attempt: int, seconds: int) -> None:
    """The longest delay doubles with each attempt up to the cap. The jitter is full: the shortest delay is zero."""
    shortest, longest = (Backoff().delay(attempt, Fixed(number)) for number in (0, 1 - 2**-53))
    assert (shortest, longest) == (timedelta(0), seconds * SECOND)


@given(st.integers(1, 1000), st.integers(0, 2**32), st.integers(1, 3600), st.integers(1, 3600))
def test_delay_is_never_negative_nor_above_the_cap(attempt: int, seed: int, first: int, cap: int) -> None:
    """With any settings, a delay is never negative and never longer than the cap."""
    delay = Backoff(first * SECOND, cap * SECOND).delay(attempt, random.Random(seed))
    assert timedelta(0) <= delay <= cap * SECOND


def test_the_oldest_entry_is_forgotten() -> None:
    """Beyond 20,000 things, the oldest one is forgotten. One that fails again is the newest."""
    delays = Delays()
    for key in range(MOST_RECENT):
        delays.next(key)
    assert delays.next(0) == 2 * SECOND
    delays.next("new")
    assert [delays.next(key) // SECOND for key in (0, 2, "new", 1)] == [4, 2, 2, 1]
