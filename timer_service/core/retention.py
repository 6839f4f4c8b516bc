"""Deletes what was settled long ago, a small batch at a time."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from timer_service.core.database import Database, Transaction
from timer_service.core.loop import Pass
from timer_service.core.transactions import in_transaction

Delete = Callable[[Transaction, int, int], Awaitable[int]]
"""Deletes rows settled before an instant, up to a limit of each kind; returns how many."""

_BATCH = 500  # a few ms, so that commands and claims hardly wait for it
_PAUSE_MS = 50


class Retention:
    """A worker whose ticks delete one batch each."""

    def __init__(self, database: Database, retention: timedelta, delete: Delete) -> None:
        self._database = database
        self._keep_ms = retention // timedelta(milliseconds=1)
        self._delete = delete

    async def tick(self, now: int) -> Pass:
        """Delete one batch of rows that were settled more than the retention ago."""
        deleted = await in_transaction(self._database, lambda tx: self._delete(tx, now - self._keep_ms, _BATCH))
        return Pass(deleted, now + _PAUSE_MS if deleted >= _BATCH else None)
