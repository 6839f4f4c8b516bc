"""How long a failed row waits for its next attempt."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential with full jitter, capped: attempt n waits between nothing and min(cap, first * 2^(n-1))."""

    first: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)

    def delay(self, attempt: int, rng: random.Random) -> timedelta:
        """Return the wait after `attempt` (1, 2, ...) failed."""
        doublings = min(attempt - 1, 30)
        longest: timedelta = min(self.cap, self.first * 2**doublings)
        return rng.random() * longest
