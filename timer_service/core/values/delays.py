"""Growing delays: 1 s, 2 s, 4 s and so on, at most a minute."""

from collections.abc import Hashable
from datetime import timedelta

from timer_service.core.values.recent import Recent

LONGEST = timedelta(minutes=1)


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
