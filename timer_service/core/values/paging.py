"""Pages of lists that are too long for one reply, and the cursors between the pages."""

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.stored_json import RawJson, write, write_list, write_object

_T = TypeVar("_T")
_Cursor = TypeVar("_Cursor", bound=Sequence[str | int])

PageLimit = Annotated[int, Field(ge=1, le=1000, strict=True)]
PageCursor = Annotated[str, Field(max_length=2000)]
PAGE_BYTES = 512 * 1024  # half of a message; the rest is for the other fields of the reply
_FIRST_STEP = 8
_LARGEST_STEP = 50  # a list of several states reads so many rows of each state
_BYTES_PER_TURN = 64 * 1024
_INTEGER_LIMIT = 2**63  # the integers of both databases are smaller
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


def next_step(shown: int, used: int, most_bytes: int = PAGE_BYTES) -> int:
    """Return how many rows to read next, for a page with `shown` rows of `used` bytes in total.

    As many as fit on the page if they are as large as the rows before them, and one more. So a list of large rows reads
    hardly more rows than it shows.
    """
    if not shown:
        return _FIRST_STEP
    left = max(most_bytes - used, 0)
    return min(_LARGEST_STEP, left * shown // used + 1)


async def read_page(
    name: str,
    read: Callable[[_Cursor, int], Awaitable[Sequence[_T]]],
    *,
    after: _Cursor,
    limit: int,
    view: Callable[[_T], Mapping[str, Any] | RawJson],
    cursor_of: Callable[[_T], _Cursor],
    end: _Cursor | None = None,
    most_bytes: int = PAGE_BYTES,
) -> RawJson:
    """Return a page: the views of up to `limit` items after a cursor, as many as fit into its bytes, at least one.

    The views are in the field `name`. `read` returns items after a cursor, in order, up to a limit. `cursor_of` returns
    the cursor of an item. The field `cursor` is set if there are more pages. If `read` stops at the cursor `end`, there
    may be more items after it: the page then ends there, perhaps without any item.
    """
    views: list[RawJson] = []
    used = in_turn = 0
    while True:
        wanted = min(next_step(len(views), used, most_bytes), limit + 1 - len(views))  # at most one beyond the limit
        found = await read(after, wanted)
        for each in found:
            if len(views) == limit:
                return write_object({"cursor": write_cursor(after)}, {name: write_list(views)})
            shown = write(view(each))
            size = len(shown.encode()) + 1  # plus a comma
            if views and used + size > most_bytes:
                return write_object({"cursor": write_cursor(after)}, {name: write_list(views)})
            views.append(shown)
            after = cursor_of(each)
            used += size
            in_turn += size
            if in_turn > _BYTES_PER_TURN:  # other tasks run between large items
                in_turn = 0
                await asyncio.sleep(0)
        if len(found) < wanted:  # `read` has come to its end
            more = {} if end is None else {"cursor": write_cursor(end)}
            return write_object(more, {name: write_list(views)})


def read_in_turn(
    lists: Sequence[tuple[_Cursor, Callable[[_Cursor, int], Awaitable[Sequence[_T]]]]],
) -> Callable[[Sequence[Any], int], Awaitable[Sequence[_T]]]:
    """Return a `read` for `read_page` that reads lists one after the other: what is open, then what has ended.

    Each list has the place before its first item, and its own `read`. A cursor is the number of a list, followed by a
    place in it. An item that changes to the other list meanwhile can be read twice, or not at all.
    """

    async def read(after: Sequence[Any], limit: int) -> Sequence[_T]:
        number, *place = after
        if number not in range(len(lists)):
            raise refused_cursor()
        found: list[_T] = []
        for start, read_list in ((place, lists[number][1]), *lists[number + 1 :]):
            found += await read_list(start, limit - len(found))
            if len(found) == limit:
                break
        return found

    return read


def read_cursor(cursor: str, *kinds: type[str | int]) -> list[Any]:
    """Return the parts of a cursor. Raises `Rejection` if it is not a cursor with parts of these types."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, RecursionError):
        raise refused_cursor() from None
    if not isinstance(parts, list) or [type(part) for part in parts] != [*kinds] or not all(map(_is_storable, parts)):
        raise refused_cursor()
    return parts


def refused_cursor() -> Rejection:
    """Return the error of a cursor that is not from a reply."""
    fault = Fault("cursor", "must be a cursor from a reply, unchanged")
    return Rejection(Code.INVALID_PAYLOAD, "the cursor is not valid", [fault])


def write_cursor(parts: Sequence[str | int]) -> str:
    """Return a cursor as text."""
    return base64.urlsafe_b64encode(json.dumps(parts, ensure_ascii=False).encode()).decode()


def _is_storable(part: str | int) -> bool:
    """Return whether both databases can compare a part with what they store."""
    if isinstance(part, int):
        return -_INTEGER_LIMIT <= part < _INTEGER_LIMIT
    return not _UNSTORABLE.search(part)
