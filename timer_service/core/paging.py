"""Lists too long for one answer: pages that fit, and cursors that go on behind them."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from pydantic_core import to_json

from timer_service.core.errors import Code, Fault, Rejection

_PAGE_BYTES = 512 * 1024  # half of what a broker's message usually may have
_LARGEST = 2**63  # no database has larger integers
_UNSTORABLE = re.compile("[\\0\ud800-\udfff]")


def fitting(views: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return as many as fit into one answer, at least one."""
    sizes = accumulate(len(to_json(view)) for view in views)
    return views[: max(1, sum(total <= _PAGE_BYTES for total in sizes))]


def write_cursor(place: Sequence[str | int]) -> str:
    """Write a place in a list for whoever is to give it back."""
    return base64.urlsafe_b64encode(json.dumps(place, ensure_ascii=False).encode()).decode()


def read_cursor(cursor: str, *kinds: type[str | int]) -> list[Any]:
    """Read a place of parts of these kinds. Raises `Rejection` for what is no such cursor."""
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, RecursionError):
        place = None
    if isinstance(place, list) and [type(part) for part in place] == [*kinds] and all(map(_is_storable, place)):
        return place
    raise Rejection(Code.INVALID_PAYLOAD, "the cursor is not one of ours", [Fault("cursor", "give it back unchanged")])


def _is_storable(part: str | int) -> bool:
    if isinstance(part, int):
        return -_LARGEST <= part < _LARGEST
    return not _UNSTORABLE.search(part)
