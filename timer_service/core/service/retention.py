"""Retention: deletes rows that were settled long ago, in small batches."""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.transactions import run_at_once

log = logging.getLogger(__name__)

Delete = Callable[[Transaction, int, int], Awaitable[int]]
"""Deletes rows that were settled before an instant, up to a limit per kind; returns how many."""

_BATCH = 500
"""How many rows a batch has at most. It usually takes a few ms, so commands and claims hardly wait."""
_LEAST_BATCH = 30
_LONG_SECONDS = 0.05
"""After a batch that took longer on SQLite, the next one is half as large: rows may have 200 KB and more.

With a shared database, no other write waits for a batch, and the time is that of the round trips too: small batches
would not keep up with a busy service.
"""
_SHORTEST_PAUSE_MS = 5
_TOLERANCE_MS = 60_000
_TRUSTED_AFTER_MS = 60 * 60 * 1000


class JumpGuard:
    """Tells whether the time may be used to delete rows. All values are milliseconds.

    After a jump forward by more than a minute it may not, until the clock was set back or has kept this time for an
    hour. A clock that is a year ahead would end the retention of every settled row, and an old command that is
    delivered again would then be handled as a new one.
    """

    def __init__(self) -> None:
        self._trusted: int | None = None
        """The last offset to the monotonic time that was trusted; None before the first time."""
        self._jumped: int | None = None
        """The offset after the last jump; None while the time is trusted."""
        self._jumped_at = 0

    def trusts(self, now: int, monotonic: int) -> bool:
        """Return whether the time `now`, which was read at a monotonic time, may be used. The first time always may."""
        offset = now - monotonic
        if self._trusted is not None and offset - self._trusted > _TOLERANCE_MS:
            if self._jumped is None or abs(offset - self._jumped) > _TOLERANCE_MS:
                self._jumped, self._jumped_at = offset, monotonic
                ahead = (offset - self._trusted) / 1000
                log.warning("the clock has jumped forward; nothing is deleted for an hour", extra={"seconds": ahead})
            if monotonic - self._jumped_at < _TRUSTED_AFTER_MS:
                return False
        self._trusted, self._jumped = offset, None
        return True


class Retention:
    """A worker that deletes one batch per pass."""

    def __init__(
        self,
        database: Database,
        retention: timedelta,
        delete: Delete,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`monotonic` returns seconds."""
        self._database = database
        self._keep_ms = retention // timedelta(milliseconds=1)
        self._delete = delete
        self._monotonic = monotonic
        self._guard = JumpGuard()
        self._limit = _BATCH
        """How many rows the next batch has at most."""

    async def tick(self, now: int) -> Pass:
        """Delete one batch of rows that were settled longer ago than the retention period, if `now` can be trusted.

        The pause after a full batch is as long as the batch took, so others have the database for half of the time.
        """
        began = self._monotonic()
        if not self._guard.trusts(now, round(began * 1000)):
            return Pass(0)
        limit = self._limit
        deleted = await run_at_once(self._database, lambda tx: self._delete_batch(tx, now - self._keep_ms, limit))
        if deleted < limit:
            return Pass(deleted)
        took = round((self._monotonic() - began) * 1000)
        return Pass(deleted, now + took + max(took, _SHORTEST_PAUSE_MS))

    async def _delete_batch(self, tx: Transaction, before: int, limit: int) -> int:
        """Delete one batch, and set the size of the next one by the time that this one took, without its commit."""
        began = self._monotonic()
        deleted = await self._delete(tx, before, limit)
        is_long = self._database.exclusive and self._monotonic() - began > _LONG_SECONDS
        self._limit = max(limit // 2, _LEAST_BATCH) if is_long else min(2 * limit, _BATCH)
        return deleted
