"""How a worker sends requests to the service, repeats them, and divides them if the service refuses them."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from timer_service.client.errors import NoAnswerError, QueryError, TimerServiceError

_Item = TypeVar("_Item")

POLL, REPORT, RENEW, EFFECTS = "poll-tasks", "report-tasks", "renew-tasks", "get-effects"
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0

Send = Callable[[str, bytes, float], Awaitable[Mapping[str, Any]]]
"""Sends a request to the service: a name and a body. Returns the reply, within a number of seconds.

Raises `NoAnswerError`, or `QueryError` if the reply is an error."""


class Delays:
    """The delays between requests that fail: 0.1 s, doubled up to 2 s, with jitter."""

    def __init__(self) -> None:
        self._next = _FIRST_DELAY

    def next(self) -> float:
        """Return the next delay, in seconds."""
        delay, self._next = self._next, min(2 * self._next, _LONGEST_DELAY)
        return delay * random.uniform(0.5, 1)  # noqa: S311 - not a secret


class Unsent(NamedTuple, Generic[_Item]):
    """The items that the service has not accepted."""

    refused: Sequence[tuple[_Item, QueryError]] = ()
    """Each item was refused alone. It makes no sense to send it again."""
    left: Sequence[_Item] = ()
    """They can be sent again later."""
    error: TimerServiceError | None = None
    """Why items are left."""


async def send_in_halves(items: Sequence[_Item], send: Callable[[Sequence[_Item]], Awaitable[None]]) -> Unsent[_Item]:
    """Send items in one request. If the service refuses it, send halves, down to single items.

    Without a reply, and if the service is busy, all items are left. So is a single item after INTERNAL: a fault of the
    service may pass. If all items of the first half are left, the second half is not tried. The halves are drawn, so
    that the next call finds out more.
    """
    try:
        await send(items)
    except NoAnswerError as error:
        return Unsent(left=items, error=error)
    except QueryError as error:
        if error.code == "BUSY" or (error.code == "INTERNAL" and len(items) == 1):
            return Unsent(left=items, error=error)
        if len(items) == 1:
            return Unsent([(items[0], error)])
    else:
        return Unsent()
    mixed = random.sample(items, len(items))
    half = len(items) // 2
    first = await send_in_halves(mixed[:half], send)
    if len(first.left) == half:
        return first._replace(left=[*first.left, *mixed[half:]])
    second = await send_in_halves(mixed[half:], send)
    return Unsent([*first.refused, *second.refused], [*first.left, *second.left], first.error or second.error)
