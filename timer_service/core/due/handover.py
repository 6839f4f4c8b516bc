"""Hands rows to their worker in the transaction that writes them, so that the worker need not claim them later.

Otherwise a worker wakes up after the commit, and claims the rows in a transaction of its own, which waits for the disk
and for other transactions. Here the writing transaction claims rows for the worker, which begins right after the
commit. Such rows are claimed like all others: with a lease, a counted attempt, and a share for each tenant. So what a
crash, an outage or a lost lease means for them is the same. See docs/decisions/0078.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from timer_service.core.ports.database import Row, Transaction
from timer_service.core.values.errors import DatabaseUnavailableError

log = logging.getLogger(__name__)

_MOST = 2
"""How many claims a worker handles at a time, besides those of its passes."""


class Handover:
    """Claims rows for one worker, and lets it handle them after the commit.

    It is open while the loop of the worker runs.
    """

    def __init__(
        self,
        name: str,
        *,
        claim: Callable[[Transaction, int], Awaitable[Sequence[Row]]],
        handle: Callable[[Sequence[Row]], Awaitable[None]],
        may_claim: Callable[[int], bool] = lambda _now: True,
    ) -> None:
        """`handle` keeps the rows for the next pass of the worker if it raises `DatabaseUnavailableError`."""
        self._name = name
        self._claim = claim
        self._handle = handle
        self._may_claim = may_claim
        self._failed: Callable[[DatabaseUnavailableError], None] | None = None
        """What to call if the database is unavailable; None while this is not open."""
        self._uncommitted = 0
        """How many claims are in transactions that have not ended."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    def open(self, failed: Callable[[DatabaseUnavailableError], None]) -> None:
        """Accept rows from now on. `failed` is called if the worker keeps rows for its next pass."""
        self._failed = failed

    async def close(self) -> None:
        """Accept no more rows, and wait until all rows that were handed over are handled."""
        self._failed = None
        while self._uncommitted or self._tasks:
            self._ended.clear()
            await self._ended.wait()

    async def claim(self, tx: Transaction, now: int) -> Sequence[Row]:
        """Claim the available rows, as many as the worker handles at a time; none if it has enough to do.

        The worker begins after the commit, also if the task of the transaction is cancelled. So the transaction must
        not be one of `Database.run`.
        """
        is_busy = self._uncommitted + len(self._tasks) >= _MOST
        if self._failed is None or is_busy or not self._may_claim(now):
            return []
        self._uncommitted += 1
        rows: list[Row] = []
        tx.on_commit(partial(self._begin, rows, self._failed))
        tx.on_rollback(self._forget)
        rows += await self._claim(tx, now)
        return rows

    def _begin(self, rows: Sequence[Row], failed: Callable[[DatabaseUnavailableError], None]) -> None:
        """Let the worker handle rows. The transaction that claimed them was committed."""
        self._forget()
        if rows:
            task = asyncio.create_task(self._run(rows, failed), name=f"{self._name}-handover")
            self._tasks.add(task)
            task.add_done_callback(self._end)

    async def _run(self, rows: Sequence[Row], failed: Callable[[DatabaseUnavailableError], None]) -> None:
        try:
            await self._handle(rows)
        except DatabaseUnavailableError as error:
            failed(error)
        except Exception:
            log.exception("rows were not handled; they are claimed again later", extra={"loop": self._name})

    def _forget(self) -> None:
        self._uncommitted -= 1
        self._ended.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.set()


@runtime_checkable
class Receiver(Protocol):
    """A worker to which transactions can hand rows over."""

    handover: Handover
