"""Deletes timers that reached or were cancelled long ago, a small batch at a time."""

from datetime import timedelta

from timer_service.core.database import Database
from timer_service.core.transacting import in_transaction
from timer_service.timers import store

_BATCH = 500  # a few ms, so that commands and claims hardly wait for it
_PAUSE_MS = 50


class Retention:
    """A worker whose ticks delete one batch each."""

    def __init__(self, database: Database, retention: timedelta) -> None:
        self._database = database
        self._keep_ms = retention // timedelta(milliseconds=1)
        self._next_at: int | None = None

    async def tick(self, now: int) -> int:
        """Delete one batch of what was settled more than the retention ago; return how many timers."""
        deleted = await in_transaction(self._database, lambda tx: store.delete_settled(tx, now - self._keep_ms, _BATCH))
        self._next_at = now + _PAUSE_MS if deleted >= _BATCH else None
        return deleted

    async def next_at(self) -> int | None:
        """Return when to go on, None when everything old is deleted."""
        return self._next_at
