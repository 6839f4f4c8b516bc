"""Retention: deletes rows that were settled long ago, in small batches."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from timer_service.core.database import Database, Transaction
from timer_service.core.loop import Pass
from timer_service.core.transactions import in_transaction

Delete = Callable[[Transaction, int, int], Awaitable[int]]
"""Deletes rows that were settled before an instant, up to a limit per kind; returns how many."""

_BATCH = 500  # takes a few ms, so commands and claims hardly wait
_PAUSE_MS = 50


class Retention:
    """A worker that deletes one batch per pass."""

    def __init__(self, database: Database, retention: timedelta, delete: Delete) -> None:
        self._database = database
        self._keep_ms = retention // timedelta(milliseconds=1)
        self._delete = delete

    async def tick(self, now: int) -> Pass:
        """Delete one batch of rows that were settled longer ago than the retention period."""
        deleted = await in_transaction(self._database, lambda tx: self._delete(tx, now - self._keep_ms, _BATCH))
        return Pass(deleted, now + _PAUSE_MS if deleted >= _BATCH else None)
