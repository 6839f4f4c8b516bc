"""Sends many items in one request, and finds the items for which the service refuses it."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from timer_service.client.errors import NoAnswerError, QueryError, TimerServiceError

_Item = TypeVar("_Item")
_MOST_FAILED_ALONE = 2


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

    Without a reply, and if the service is busy, all items are left. If two items fail alone and none was accepted, the
    fault is not that of an item: then the others are left, too. The halves are drawn, so that the next call finds out
    more.
    """
    refused: list[tuple[_Item, QueryError]] = []
    failed: list[_Item] = []
    parts, has_accepted, last_error = [items], False, None
    while parts:
        part = parts.pop()
        try:
            await send(part)
            has_accepted = True
            continue
        except NoAnswerError as error:
            return Unsent(refused, [*failed, *part, *_flat(parts)], error)
        except QueryError as error:
            last_error = error
        if last_error.code == "BUSY":
            return Unsent(refused, [*failed, *part, *_flat(parts)], last_error)
        if len(part) > 1:
            mixed = random.sample(part, len(part))
            parts += [mixed[len(part) // 2 :], mixed[: len(part) // 2]]
        elif last_error.code == "INTERNAL":
            failed += part
            if len(failed) >= _MOST_FAILED_ALONE and not has_accepted:
                break
        else:
            refused.append((part[0], last_error))
    return Unsent(refused, [*failed, *_flat(parts)], last_error)


def _flat(parts: Sequence[Sequence[_Item]]) -> list[_Item]:
    return [each for part in parts for each in part]
