"""Finds the items of a failed transaction that fail alone, so that they delay no other items."""

import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar

from timer_service.core.due.blame import OF_ENVIRONMENT, Blame, blame
from timer_service.core.due.loop import PASS_SECONDS
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.delays import Delays
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class Failed(NamedTuple, Generic[T]):
    """An item that has failed alone."""

    item: T
    error: Exception


class Isolated(NamedTuple, Generic[T]):
    """What has become of each item. The caller postpones `broken` and `blocked`; what is in no list was not tried."""

    done: Sequence[T]
    broken: Sequence[Failed[T]]
    """Their own error made the transaction fail."""
    blocked: Sequence[Failed[T]]
    """A lock of another session, a statement that took too long, or a conflict made the transaction fail."""

    @property
    def failed(self) -> Sequence[Failed[T]]:
        """The broken and the blocked items."""
        return [*self.broken, *self.blocked]

    def raise_if_all_are_broken(self) -> None:
        """Raise an error of the items if several are broken and none is done: the fault is probably not in them."""
        if not self.done and len(self.broken) > 1:
            raise self.broken[0].error


async def isolate(
    items: Sequence[T],
    attempt: Callable[[Sequence[T]], Awaitable[object]],
    *,
    failed: Exception | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Isolated[T]:
    """Handle items together. If that fails, handle halves, down to the items that fail alone.

    `failed`: the error with which all items together have failed already.

    `attempt` handles items in one transaction, or raises and leaves nothing behind. `n` items take `2 * n - 1` attempts
    at most. After 2 s no further part is tried.

    Raises the error of `attempt` if the database is away, busy or not set up. Items that were done before stay done.
    """
    until = monotonic() + PASS_SECONDS
    done: list[T] = []
    broken: list[Failed[T]] = []
    blocked: list[Failed[T]] = []
    parts = [items] if items else []
    while parts and not (monotonic() > until and (done or broken or blocked)):
        part = parts.pop()
        error = failed or await _error_of(attempt(part))
        failed = None  # it was the error of all items together, which are the first part
        if error is None:
            done += part
            continue
        kind = blame(error)
        if kind in OF_ENVIRONMENT:
            raise error
        if half := len(part) // 2:
            log.warning("transaction failed, handling its halves", exc_info=error, extra={"count": len(part)})
            parts += [part[half:], part[:half]]  # `pop` takes the first half first
        elif kind is Blame.COMMAND:
            broken.append(Failed(part[0], error))
        else:
            blocked.append(Failed(part[0], error))
    return Isolated(done, broken, blocked)


async def _error_of(work: Awaitable[object]) -> Exception | None:
    """Return the error with which work ends; None if it succeeds."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - `blame` knows every error
        return error
    return None


async def isolate_in_transactions(
    database: Database,
    items: Sequence[T],
    handle: Callable[[Transaction, Sequence[T]], Awaitable[R]],
    then: Callable[[R], object],
    *,
    failed: Exception | None = None,
) -> Isolated[T]:
    """Like `isolate`. `handle` handles items in a transaction, and `then` gets its result after the commit.

    Only the first transaction waits for locks for long.
    """

    async def attempt(part: Sequence[T]) -> None:
        """Handle a part of the items, or all of them, in one transaction."""

        async def work(tx: Transaction) -> R:
            if len(part) < len(items):
                await tx.wait_briefly()
            return await handle(tx, part)

        then(await in_transaction(database, work))

    return await isolate(items, attempt, failed=failed)


class Retry(NamedTuple):
    """When a row that failed is tried again, in Unix milliseconds, and why it failed."""

    at: int
    error: str


class Retries(Generic[K]):
    """Decides when rows that failed are tried again: after 1 s, 2 s, 4 s, ... 60 s. Logs each failure."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._delays = Delays()

    def of(self, failed: Iterable[Failed[K]], now: int) -> dict[K, Retry]:
        """Return when to try each row again, by its key. It waits longer each time."""
        retries: dict[K, Retry] = {}
        for key, error in failed:
            delay = self._delays.next(key)
            about = {"table": self._table, "key": key, "seconds": delay.total_seconds()}
            log.warning("a row that is due failed; trying it later", exc_info=error, extra=about)
            retries[key] = Retry(now + delay // timedelta(milliseconds=1), error_text(error))
        return retries

    def forget(self, keys: Iterable[K]) -> None:
        """Record that rows were handled."""
        for key in keys:
            self._delays.forget(key)
