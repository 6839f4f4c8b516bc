"""Lists in parts that are not too large. It imports nothing that takes long."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def split(
    items: Iterable[_T], size: Callable[[_T], int], *, max_count: float = math.inf, max_bytes: int
) -> Iterator[list[_T]]:
    """Split items into lists within both limits. An item that is larger than `max_bytes` gets a list of its own."""
    part: list[_T] = []
    total = 0
    for item in items:
        total += size(item)
        if part and (len(part) == max_count or total > max_bytes):
            yield part
            part, total = [], size(item)
        part.append(item)
    if part:
        yield part
