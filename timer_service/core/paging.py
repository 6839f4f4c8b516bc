"""Pages of lists that are too long for one reply, and the cursors between the pages."""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field
from pydantic_core import to_json

from timer_service.core.errors import Code, Fault, Rejection

_T = TypeVar("_T")
_Cursor = TypeVar("_Cursor", bound=Sequence[str | int])

PageLimit = Annotated[int, Field(ge=1, le=1000, strict=True)]
PageCursor = Annotated[str, Field(max_length=2000)]
PAGE_BYTES = 512 * 1024  # half of a message; the rest is for the other fields of the reply
_READ_AT_ONCE = 100  # at most 6 MiB
_INTEGER_LIMIT = 2**63  # the integers of both databases are smaller
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


async def read_page(
    name: str,
    read: Callable[[_Cursor, int], Awaitable[Sequence[_T]]],
    *,
    after: _Cursor,
    limit: int,
    view: Callable[[_T], Mapping[str, Any]],
    cursor_of: Callable[[_T], _Cursor],
) -> Mapping[str, Any]:
    """Return a page: the views of up to `limit` items after a cursor, as many as fit into one reply, at least one.

    The views are in the field `name`. `read` returns items after a cursor, in order, up to a limit. `cursor_of` returns
    the cursor of an item. The field `cursor` is set if there are more pages.
    """
    page = _Page(limit, view)
    while True:
        wanted = min(_READ_AT_ONCE, limit + 1 - len(page.views))
        found = await read(after, wanted)
        if taken := page.take(found):
            after = cursor_of(found[taken - 1])
        if taken < len(found):
            return {name: page.views, "cursor": write_cursor(after)}
        if len(found) < wanted:
            return {name: page.views}


class _Page(Generic[_T]):
    """The views on a page so far, and the room that is left."""

    def __init__(self, limit: int, view: Callable[[_T], Mapping[str, Any]]) -> None:
        self.views: list[Mapping[str, Any]] = []
        self._limit = limit
        self._view = view
        self._room = PAGE_BYTES

    def take(self, found: Sequence[_T]) -> int:
        """Add as many items as the page has room for; return how many."""
        for number, each in enumerate(found):
            if len(self.views) == self._limit:
                return number
            view = self._view(each)
            size = len(to_json(view)) + 1  # plus a comma
            if self.views and size > self._room:
                return number
            self._room -= size
            self.views.append(view)
        return len(found)


def read_cursor(cursor: str, *kinds: type[str | int]) -> list[Any]:
    """Return the parts of a cursor. Raises `Rejection` if it is not a cursor with parts of these types."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, RecursionError):
        parts = None
    if isinstance(parts, list) and [type(part) for part in parts] == [*kinds] and all(map(_is_storable, parts)):
        return parts
    fault = Fault("cursor", "must be a cursor from a reply, unchanged")
    raise Rejection(Code.INVALID_PAYLOAD, "the cursor is not valid", [fault])


def write_cursor(parts: Sequence[str | int]) -> str:
    """Return a cursor as text."""
    return base64.urlsafe_b64encode(json.dumps(parts, ensure_ascii=False).encode()).decode()


def _is_storable(part: str | int) -> bool:
    if isinstance(part, int):
        return -_INTEGER_LIMIT <= part < _INTEGER_LIMIT
    return not _UNSTORABLE.search(part)
