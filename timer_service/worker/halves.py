"""Sends many items in one request, and finds the items for which the service refuses it."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from timer_service.client.errors import NoAnswerError, QueryError, TimerServiceError

_Item = TypeVar("_Item")


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

    Without a reply, and if the service is busy, all items are left. If all items of the first half are left, the second
    half is not tried. The halves are drawn, so that the next call finds out more.
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
