"""Small workers: delete rows that were settled long ago, find out whether a database can be written."""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import run_at_once

_SQL = load_sql("timer_service.core.service", "upkeep.sql")

Delete = Callable[[Transaction, int, int], Awaitable[int]]
"""Deletes rows that were settled before an instant, up to a limit per kind; returns how many."""

_BATCH = 500
"""How many rows a batch has at most. It usually takes a few ms, so commands and claims hardly wait."""
_SHORTEST_PAUSE_MS = 5


@dataclass(eq=False)
class Retention:
    """A worker that deletes one batch per pass."""

    database: Database
    retention: timedelta
    delete: Delete

    async def tick(self, now: int) -> Pass:
        """Delete one batch of rows that were settled longer ago than the retention period.

        The pause after a full batch is as long as the batch took, so others have the database for half of the time.
        """
        began = time.monotonic()
        before = now - self.retention // timedelta(milliseconds=1)
        deleted = await run_at_once(self.database, lambda tx: self.delete(tx, before, _BATCH))
        if deleted < _BATCH:
            return Pass(deleted)
        took = round((time.monotonic() - began) * 1000)
        return Pass(deleted, now + took + max(took, _SHORTEST_PAUSE_MS))


@dataclass(eq=False)
class DatabaseProbe:
    """A worker that writes to the database while its last write failed.

    Only a commit that wrote shows that the database can be written, and an idle service writes nothing by itself.
    """

    database: Database

    async def tick(self, now: int) -> Pass:  # noqa: ARG002 - part of the protocol
        """Write once if the last write failed."""
        if not self.database.health.usable:
            new = {"database_id": secrets.token_hex(16)}
            await run_at_once(self.database, lambda tx: tx.execute(_SQL["write"], new))
        return Pass(0)
