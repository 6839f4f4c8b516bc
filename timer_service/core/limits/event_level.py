"""How much of its limit of event bytes a tenant has used. What it has used comes back evenly.

If a tenant has used nothing, it may publish the whole limit at once. After that it gets back as much within the time
for which the broker keeps events. So the stream has at most twice the limit of its events.
"""

from typing import NamedTuple

_PARTS = 64
"""A process takes such a part of the limit at a time. If it dies, the unused rest counts as used."""
_STEPS = 1000
"""A tenant that waits goes on when such a part of its limit is back, so that it does not wait for each event."""
_LEAST_STEP = 4096
"""The least bytes of such a part, if the limit is not very small."""
_SHORTEST_WAIT_MS = 1_000
_LONGEST_WAIT_MS = 10 * 60_000
"""After this time a tenant looks again. Its limit may be higher, or the clock may have been set back."""
_LONGEST_USE_MS = 10**15
"""No level is used for longer, so that each instant fits into the database, however low the limit has become."""


class Limit(NamedTuple):
    """How many bytes a tenant may use at once, and in which time as many come back."""

    most: int
    period_ms: int


class Level(NamedTuple):
    """How much a tenant has used at an instant, and when nothing of that will be left."""

    used: int
    counted_at: int
    empty_at: int

    def used_at(self, now: int) -> int:
        """Return how much is used at `now`. If the clock was set back, nothing has come back yet."""
        if now >= self.empty_at:
            return 0
        if now <= self.counted_at:
            return self.used
        return _divide(self.used * (self.empty_at - now), self.empty_at - self.counted_at)


class Taken(NamedTuple):
    """What a tenant gets."""

    level: Level
    """The level after that. It is another one if it must be written."""
    amount: int
    """How many bytes it may publish: more than it wants, less, or none."""
    again_at: int | None
    """When to ask again if it gets less than it wants."""


def take(level: Level, limit: Limit, wanted: int, now: int) -> Taken:
    """Return what a tenant gets that wants some bytes, at least 1."""
    used = level.used_at(now)
    room = limit.most - used
    step = max(limit.most // _STEPS, min(_LEAST_STEP, limit.most // 8), 1)
    amount = min(max(wanted, limit.most // _PARTS), room) if room >= min(wanted, step) else 0
    if amount or level.counted_at > now:
        level = Level(used + amount, now, now + min(_time_for(used + amount, limit), _LONGEST_USE_MS))
    if amount >= wanted:
        return Taken(level, amount, None)
    wait = _time_for(step - room + amount, limit)
    return Taken(level, amount, now + min(max(wait, _SHORTEST_WAIT_MS), _LONGEST_WAIT_MS))


def is_waiting(again_at: int, now: int, grace_ms: int = 0) -> bool:
    """Return whether a tenant still waits, or did until a short time ago. If the clock was set back, it does not."""
    return now < again_at + grace_ms and again_at <= now + _LONGEST_WAIT_MS


def _time_for(amount: int, limit: Limit) -> int:
    """Return the milliseconds in which so many bytes come back."""
    return _divide(amount * limit.period_ms, max(limit.most, 1))


def _divide(dividend: int, divisor: int) -> int:
    """Return a quotient, rounded up."""
    return -(-dividend // divisor)
