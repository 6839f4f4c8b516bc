"""The due schedules that this instance cannot compute, and leaves to the other instances. See docs/decisions/0059."""

from collections.abc import Sequence

from timer_service.core.database import Row
from timer_service.schedules.schedule import Key
from timer_service.schedules.store import key_of

_LEAVE_MS = 10_000
"""For how long a due schedule is left to others. Every instance that works looks for due schedules more often."""


class LeftToOthers:
    """Knows which due schedules are left to other instances. It is kept from pass to pass.

    An instance may lack a time zone, or a newer version may have written a schedule. Another instance can then fire it
    in time, so it is not changed. If nobody has fired it after ten seconds, it is no longer left to others.
    """

    def __init__(self, *, exclusive: bool) -> None:
        """`exclusive`: there are no other instances."""
        self._leave_ms = 0 if exclusive else _LEAVE_MS
        self._left: dict[Key, int] = {}
        """Since when the schedules have been due."""

    def own(self, rows: Sequence[Row], now: int) -> list[Row]:
        """Return the due schedules that are not left to others. Those that are left are not computed again."""
        self._left = {key: at for key, at in self._left.items() if self._may_leave(at, now)}
        return [row for row in rows if self._left.get(key_of(row)) != row["available_at"]]

    def leave(self, row: Row, now: int) -> bool:
        """Leave a due schedule that cannot be computed to others. Return false if it has been due for too long."""
        if self._may_leave(row["available_at"], now):
            self._left[key_of(row)] = row["available_at"]
        return key_of(row) in self._left

    def _may_leave(self, at: int, now: int) -> bool:
        return now - at < self._leave_ms
