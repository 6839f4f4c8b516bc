"""The due schedules that this instance cannot compute, and leaves to the other instances. See docs/decisions/0059."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timer_service.core.database import Row
from timer_service.schedules.schedule import Key
from timer_service.schedules.store import key_of

_LEAVE_MS = 10_000
"""For how long a due schedule is left to others. Each of them gets a hint, and polls every 5 s by default."""


class Left(NamedTuple):
    """A schedule that a pass has left to other instances."""

    key: Key
    due_at: int
    reason: str
    """Why this instance cannot compute it."""


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
        self._left = {key: at for key, at in self._left.items() if self._is_recent(at, now)}
        return [row for row in rows if self._left.get(key_of(row)) != row["available_at"]]

    def may_leave(self, row: Row, now: int) -> bool:
        """Return whether to leave a due schedule that cannot be computed: it has not been due for too long."""
        return self._is_recent(row["available_at"], now)

    def record(self, left: Iterable[Left]) -> None:
        """Record schedules that a pass has left."""
        self._left |= {each.key: each.due_at for each in left}

    def _is_recent(self, at: int, now: int) -> bool:
        return now - at < self._leave_ms
