"""Finds the items of a failed transaction that fail alone, so that they delay no other items."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.loop import PASS_SECONDS

log = logging.getLogger(__name__)

T = TypeVar("T")

_OF_ENVIRONMENT = frozenset({Blame.SETUP, Blame.BUSY, Blame.OUTAGE})


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


async def isolate(
    items: Sequence[T],
    attempt: Callable[[Sequence[T]], Awaitable[object]],
    *,
    monotonic: Callable[[], float] = time.monotonic,
) -> Isolated[T]:
    """Handle items together. If that fails, handle halves, down to the items that fail alone.

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
        try:
            await attempt(part)
        except Exception as error:
            kind = blame(error)
            if kind in _OF_ENVIRONMENT:
                raise
            if half := len(part) // 2:
                log.warning("transaction failed, handling its halves", exc_info=error, extra={"count": len(part)})
                parts += [part[half:], part[:half]]
            else:
                (broken if kind is Blame.COMMAND else blocked).append(Failed(part[0], error))
        else:
            done += part
    return Isolated(done, broken, blocked)
