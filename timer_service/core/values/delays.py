"""How long a failed row or another thing waits before its next attempt."""

import random
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta

MOST_RECENT = 20_000
LONGEST_DELAY = timedelta(minutes=5)
"""No row waits longer than this between two attempts."""
LONGEST = timedelta(minutes=1)
"""The longest of the growing delays of `Delays`: 1 s, 2 s, 4 s and so on."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter and a cap: attempt n waits from 0 to min(cap, first * 2^(n-1))."""

    first: timedelta = timedelta(seconds=1)
    cap: timedelta = LONGEST_DELAY

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return the delay after `attempt` (1, 2, ...) failed."""
        return rng.random() * self.longest(attempt)

    def longest(self, attempt: int) -> timedelta:
        """Return the longest delay after `attempt` (1, 2, ...) failed."""
        doublings = min(attempt - 1, 30)  # more would overflow
        longest: timedelta = min(self.cap, self.first * 2**doublings)
        return longest


class Delays:
    """How long each of some things waits before its next attempt. Forgets the oldest of 20,000."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}

    def next(self, key: Hashable) -> timedelta:
        """Record a failed attempt, and return the delay before the next one."""
        failed_before = self._times.pop(key, 0)  # removed, so that it is added again as the newest one
        if len(self._times) >= MOST_RECENT:
            del self._times[next(iter(self._times))]
        self._times[key] = failed_before + 1
        return min(timedelta(seconds=2 ** min(failed_before, 10)), LONGEST)

    def forget(self, key: Hashable) -> None:
        """Record that an attempt has succeeded."""
        self._times.pop(key, None)
