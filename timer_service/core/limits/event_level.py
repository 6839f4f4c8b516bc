"""How much of its limit of event bytes a tenant has used. What it has used comes back evenly.

If a tenant has used nothing, it may publish the whole limit at once. After that it gets back as much within the time
for which the broker keeps events. So the stream has at most twice the limit of its events, and what was published
beyond the limit before that was counted.
"""

from typing import NamedTuple

_SHORTEST_WAIT_MS = 1_000
"""A tenant that waits does so for this long, so that its events go out some at a time."""
_AHEAD_MS = 10 * 60_000
"""A level from further in the future was counted by a clock that has been set back since. It says nothing."""
_LONGEST_USE_MS = 10**15
"""No level is used for longer, so that each instant fits into the database, however low the limit has become."""


class Limit(NamedTuple):
    """How many bytes a tenant may use at once, and in which time as many come back."""

    most: int
    period_ms: int


class Level(NamedTuple):
    """How much a tenant has used at an instant, and when nothing of that will be left."""

    used: int = 0
    counted_at: int = 0
    empty_at: int = 0

    def used_at(self, now: int) -> int:
        """Return how much is used at `now`. If the clock was set back a little, nothing has come back yet."""
        if now >= self.empty_at or self.counted_at > now + _AHEAD_MS:
            return 0
        if now <= self.counted_at:
            return self.used
        return _divide(self.used * (self.empty_at - now), self.empty_at - self.counted_at)

    def charged(self, amount: int, limit: Limit, now: int) -> "Level":
        """Return the level after some more bytes were published."""
        used = self.used_at(now) + amount
        return Level(used, now, now + min(_divide(used * limit.period_ms, max(limit.most, 1)), _LONGEST_USE_MS))

    def again_at(self, limit: Limit, now: int) -> int | None:
        """Return when no more than the limit will be used, a second later at the earliest; None if that is so now."""
        if self.used_at(now) <= limit.most:
            return None
        at = self.empty_at - limit.most * (self.empty_at - self.counted_at) // self.used
        return max(at, now + _SHORTEST_WAIT_MS)


def _divide(dividend: int, divisor: int) -> int:
    """Return a quotient, rounded up."""
    return -(-dividend // divisor)
