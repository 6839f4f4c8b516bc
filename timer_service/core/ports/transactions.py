"""Transactions that are retried after a conflict with another instance."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from timer_service.core.ports.database import Database, Transaction
from timer_service.core.values.errors import ConflictError, DuplicateError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_TRIES = 5
_LONGEST_PAUSE_SECONDS = 0.05


async def in_transaction(
    database: Database, work: Callable[[Transaction], Awaitable[_T]], *, accepting: bool = False
) -> _T:
    """Run `work` in a write transaction and return its result, retrying on conflicts and duplicates.

    A conflict is, for example, a deadlock. A duplicate may be a row that another instance has just inserted. Raises the
    error of the fifth try. `accepting`: the transaction handles commands.
    """

    async def once() -> _T:
        async with database.accepting() if accepting else database.transaction() as tx:
            return await work(tx)

    return await retry_on_conflict(once)


async def run_at_once(database: Database, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
    """Like `in_transaction`, for work that awaits nothing but its transaction. It needs fewer turns of the loop."""
    return await retry_on_conflict(partial(database.run, work))


async def retry_on_conflict(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run `work` up to five times, retrying on conflicts and duplicates. The failed transaction was rolled back."""
    for _ in range(1, _TRIES):
        try:
            return await work()
        except (ConflictError, DuplicateError) as error:
            log.info("conflict with another instance; retrying the transaction", extra={"reason": str(error)})
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - jitter, not a secret
    return await work()
