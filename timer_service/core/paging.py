"""Lists too long for one answer: pages that fit, and cursors that go on behind them."""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field
from pydantic_core import to_json

from timer_service.core.errors import Code, Fault, Rejection

_T = TypeVar("_T")
_Place = TypeVar("_Place", bound=Sequence[str | int])

PageLimit = Annotated[int, Field(ge=1, le=1000, strict=True)]
PageCursor = Annotated[str, Field(max_length=2000)]
PAGE_BYTES = 512 * 1024  # half of a message: the rest is for what an answer tells besides
_READ_AT_ONCE = 100  # of the largest rows 6 MiB
_LARGEST = 2**63  # no database has larger integers
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


async def read_page(
    name: str,
    read: Callable[[_Place, int], Awaitable[Sequence[_T]]],
    *,
    after: _Place,
    limit: int,
    view: Callable[[_T], Mapping[str, Any]],
    place: Callable[[_T], _Place],
) -> Mapping[str, Any]:
    """Return the views of what `read` finds behind a place, under `name`: up to `limit`, as many as fit into one reply.

    `read` gets a place and the most to return, in order. Little more is read than is shown, at least one. If there are
    more, there is a `cursor` with the place of the last.
    """
    shown = _Page(limit, view)
    while True:
        wanted = min(_READ_AT_ONCE, limit + 1 - len(shown.views))
        found = await read(after, wanted)
        if taken := shown.take(found):
            after = place(found[taken - 1])
        if taken < len(found):
            return {name: shown.views, "cursor": write_cursor(after)}
        if len(found) < wanted:
            return {name: shown.views}


class _Page(Generic[_T]):
    """What a page shows so far, and its bytes."""

    def __init__(self, limit: int, view: Callable[[_T], Mapping[str, Any]]) -> None:
        self.views: list[Mapping[str, Any]] = []
        self._limit = limit
        self._view = view
        self._room = PAGE_BYTES

    def take(self, found: Sequence[_T]) -> int:
        """Show as many as there is room for; return how many those are."""
        for number, each in enumerate(found):
            if len(self.views) == self._limit:
                return number
            view = self._view(each)
            size = len(to_json(view)) + 1  # and a comma
            if self.views and size > self._room:
                return number
            self._room -= size
            self.views.append(view)
        return len(found)


def read_cursor(cursor: str, *kinds: type[str | int]) -> list[Any]:
    """Read a place of parts of these kinds. Raises `Rejection` for what is no such cursor."""
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, RecursionError):
        place = None
    if isinstance(place, list) and [type(part) for part in place] == [*kinds] and all(map(_is_storable, place)):
        return place
    raise Rejection(Code.INVALID_PAYLOAD, "the cursor is not one of ours", [Fault("cursor", "give it back unchanged")])


def write_cursor(place: Sequence[str | int]) -> str:
    """Write a place as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(place, ensure_ascii=False).encode()).decode()


def _is_storable(part: str | int) -> bool:
    if isinstance(part, int):
        return -_LARGEST <= part < _LARGEST
    return not _UNSTORABLE.search(part)
