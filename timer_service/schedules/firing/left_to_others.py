"""The due schedules that this instance cannot compute, and leaves to the other instances. See docs/decisions/0059."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timer_service.core.ports.database import Row
from timer_service.schedules.schedule import Key
from timer_service.schedules.store import key_of

_LEAVE_MS = 10_000
"""For how long a due schedule is left to others. Each of them gets a hint, and polls every 5 s by default."""
_MANY = 100
_LEAVE_MANY_MS = 2000
"""For how long so many schedules of a tenant are left. They may take all its places in each pass until then."""
_REMEMBER_MS = 60_000
"""For how long a schedule is remembered after it was met. A pass that comes later leaves it to others again."""


class Left(NamedTuple):
    """A schedule that a pass has left to other instances."""

    key: Key
    due_at: int
    reason: str
    """Why this instance cannot compute it."""


class _Meeting(NamedTuple):
    """When this instance met a schedule that it cannot compute, and since when the schedule has been due."""

    at: int
    due_at: int


class LeftToOthers:
    """Knows which due schedules are left to other instances. It is kept from pass to pass.

    An instance may lack a time zone, or a newer version may have written a schedule. Another instance can then fire it
    in time, so it is not changed. If no instance has fired it after ten seconds, it is no longer left to others. These
    count from when this instance has met it: after an outage, a schedule may have been due for longer. A tenant's newer
    slots wait behind many schedules that are left, so these are left for two seconds only.
    """

    def __init__(self, *, exclusive: bool) -> None:
        """`exclusive`: there are no other instances."""
        self._exclusive = exclusive
        self._met: dict[Key, _Meeting] = {}

    def own(self, rows: Sequence[Row], now: int) -> list[Row]:
        """Return the due schedules that are not left to others. Those that are left are not computed again."""
        self._met = {key: met for key, met in self._met.items() if now - met.at < _REMEMBER_MS}
        meetings = {key_of(row): met for row in rows if (met := self._meeting(row)) is not None}
        counts = Counter(key.tenant_id for key in meetings)
        left = {key for key, met in meetings.items() if now - met.at < _leave_ms(counts[key.tenant_id])}
        return [row for row in rows if key_of(row) not in left] if left else list(rows)

    def may_leave(self, row: Row) -> bool:
        """Return whether to leave a due schedule that cannot be computed: it was not left before."""
        return not self._exclusive and self._meeting(row) is None

    def record(self, left: Iterable[Left], now: int) -> None:
        """Record schedules that a pass has left."""
        self._met |= {each.key: _Meeting(now, each.due_at) for each in left}

    def _meeting(self, row: Row) -> _Meeting | None:
        met = self._met.get(key_of(row)) if self._met else None
        return met if met is not None and met.due_at == row["available_at"] else None


def _leave_ms(count: int) -> int:
    """Return for how long to leave the schedules of a tenant, if a pass has selected so many of them."""
    return _LEAVE_MS if count < _MANY else _LEAVE_MANY_MS
