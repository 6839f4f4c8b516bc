"""How long a failed row or another thing waits before its next attempt."""

import random
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

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
        doublings = min(attempt - 1, 30)
        longest: timedelta = min(self.cap, self.first * 2**doublings)
        return rng.random() * longest


class Recent(dict[_K, _V]):
    """A dictionary that keeps the 20,000 newest entries. An entry that is set again becomes the newest.

    Only `recent[key] = value` is bounded, not the other ways to fill a dictionary.
    """

    __slots__ = ()

    def __setitem__(self, key: _K, value: _V) -> None:
        self.pop(key, None)
        if len(self) >= MOST_RECENT:
            del self[next(iter(self))]
        super().__setitem__(key, value)


class Delays:
    """How long each of some things waits before its next attempt. Forgets the oldest of 20,000."""

    def __init__(self) -> None:
        self._times: Recent[Hashable, int] = Recent()

    def __bool__(self) -> bool:
        return bool(self._times)

    def __contains__(self, key: Hashable) -> bool:
        """Return whether an attempt of this thing has failed."""
        return key in self._times

    def count(self, key: Hashable) -> int:
        """Return how many attempts of this thing have failed since the last one that succeeded."""
        return self._times.get(key, 0)

    def next(self, key: Hashable) -> timedelta:
        """Record a failed attempt, and return the delay before the next one."""
        times = self.count(key)
        self._times[key] = times + 1
        return min(timedelta(seconds=2 ** min(times, 10)), LONGEST)

    def forget(self, key: Hashable) -> None:
        """Record that an attempt has succeeded."""
        self._times.pop(key, None)
