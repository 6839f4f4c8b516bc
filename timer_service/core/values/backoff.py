"""The delay before a failed row's next attempt."""

import random
from dataclasses import dataclass
from datetime import timedelta

LONGEST_DELAY = timedelta(minutes=5)
"""No row waits longer than this between two attempts."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter and a cap: attempt n waits from 0 to min(cap, first * 2^(n-1))."""

    first: timedelta = timedelta(seconds=1)
    cap: timedelta = LONGEST_DELAY

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return the delay after `attempt` (1, 2, ...) failed."""
        doublings = min(attempt - 1, 30)
        longest: timedelta = min(self.cap, self.first * 2**doublings)
        return rng.random() * longest
