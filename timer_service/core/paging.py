"""Lists too long for one answer: pages that fit, and cursors that go on behind them."""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, TypeVar

from pydantic import Field
from pydantic_core import to_json

from timer_service.core.errors import Code, Fault, Rejection

_T = TypeVar("_T")

PageLimit = Annotated[int, Field(ge=1, le=1000)]
PageCursor = Annotated[str, Field(max_length=2000)]
PAGE_BYTES = 512 * 1024  # half of what a broker's message usually may have
_LARGEST = 2**63  # no database has larger integers
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


def page(
    name: str,
    found: Sequence[_T],
    *,
    limit: int,
    view: Callable[[_T], Mapping[str, Any]],
    place: Callable[[_T], Sequence[str | int]],
) -> Mapping[str, Any]:
    """Return the views of what was found under `name`: up to `limit`, as many as fit into one answer, at least one.

    When there are more there is a `cursor`, which holds the place of the last.
    """
    views = [view(each) for each in found[:limit]]
    sizes = accumulate(len(to_json(each)) for each in views)
    shown = views[: max(1, sum(total <= PAGE_BYTES for total in sizes))]
    if len(shown) == len(found):
        return {name: shown}
    return {name: shown, "cursor": write_cursor(place(found[len(shown) - 1]))}


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
