"""Reads the rows of a batch of commands in portions, so that the data of one transaction is bounded."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, Self, TypeVar

_READ_AT_ONCE = 250
_FIRST_READ = 64
"""The keys of the first portion. Each portion has twice as many, so that much data is seen after a few rows."""
MOST_DATA = 2 * 1024 * 1024
"""How many characters of data the rows of one transaction may have. A single row may have more."""


class _Ordered(Protocol):
    def __lt__(self, other: Self, /) -> bool: ...


_K = TypeVar("_K", bound=_Ordered)
_V = TypeVar("_V")


async def load_in_portions(
    keys: Collection[_K],
    load: Callable[[Sequence[_K]], Awaitable[Mapping[_K, _V]]],
    characters: Callable[[_V], int],
    at_once: int = _READ_AT_ONCE,
    *,
    whole: bool = False,
) -> tuple[dict[_K, _V], frozenset[_K]]:
    """Load the values of keys in the order of the keys. Return those that exist, and the keys that are left.

    `characters` returns how much data a value has. The first values with 2 Mi characters are returned, at least one.
    The others are left, also if their portion was loaded. Each portion has at most `at_once` keys.

    `whole`: portions are returned whole, because the data is not written again and a portion is expensive to load.
    """
    found: dict[_K, _V] = {}
    in_order = sorted(keys)
    room, start, size = MOST_DATA, 0, min(_FIRST_READ, at_once)
    while portion := in_order[start : start + size]:
        values = await load(portion)
        for index, key in enumerate(portion, start):
            if key not in values:
                continue
            room -= characters(values[key])
            if room < 0 and found and not whole:
                return found, frozenset(in_order[index:])
            found[key] = values[key]
        start, size = start + size, min(2 * size, at_once)
        if room <= 0:
            return found, frozenset(in_order[start:])
    return found, frozenset()
