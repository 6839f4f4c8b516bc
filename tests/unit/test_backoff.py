import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timer_service.core.backoff import Backoff

SECOND = timedelta(seconds=1)


class Highest(random.Random):
    """Draws the highest number there is."""

    def random(self) -> float:
        return 1 - 2**-53


class Lowest(random.Random):
    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (8, 128), (9, 256), (10, 300), (11, 300), (10_000, 300)]
)
def test_ceiling_doubles_up_to_the_cap(attempt: int, seconds: int) -> None:
    """The longest wait doubles with each attempt from the first until the cap, and stays there however many follow."""
    assert Backoff().delay(attempt, Highest()) == timedelta(seconds=seconds)


@pytest.mark.parametrize("attempt", [1, 2, 10, 10_000])
def test_jitter_reaches_down_to_nothing(attempt: int) -> None:
    """The jitter is full: the shortest wait is none at all."""
    assert Backoff().delay(attempt, Lowest()) == timedelta(0)


@given(st.integers(1, 1000), st.integers(0, 2**32), st.integers(1, 3600), st.integers(1, 3600))
def test_never_outside(attempt: int, seed: int, first: int, cap: int) -> None:
    """Whatever it is set to, a wait is never negative and never longer than the cap."""
    delay = Backoff(first * SECOND, cap * SECOND).delay(attempt, random.Random(seed))
    assert timedelta(0) <= delay <= cap * SECOND


def test_spreads() -> None:
    """Rows that failed together don't come back together: a hundred waits fill every tenth of the range."""
    rng = random.Random(7)
    delays = [Backoff(10 * SECOND, 10 * SECOND).delay(1, rng) for _ in range(100)]
    assert {delay // SECOND for delay in delays} == set(range(10))
