"""Reads the rows of a batch of commands in portions, so that the data of one transaction is bounded."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, Self, TypeVar

_READ_AT_ONCE = 250
MOST_DATA = 4 * 1024 * 1024
"""How many characters of data one transaction may read. A single portion may have more."""


class _Ordered(Protocol):
    def __lt__(self, other: Self, /) -> bool: ...


_K = TypeVar("_K", bound=_Ordered)
_V = TypeVar("_V")


async def load_in_portions(
    keys: Collection[_K],
    load: Callable[[Sequence[_K]], Awaitable[Mapping[_K, _V]]],
    characters: Callable[[_V], int],
    at_once: int = _READ_AT_ONCE,
) -> tuple[dict[_K, _V], frozenset[_K]]:
    """Load the values of keys in the order of the keys. Return those that exist, and the keys that were not looked for.

    `characters` returns how much data a value has. No more is loaded after 4 Mi characters. Each portion has `at_once`
    keys.
    """
    found: dict[_K, _V] = {}
    in_order = sorted(keys)
    room = MOST_DATA
    for start in range(0, len(in_order), at_once):
        if room <= 0:
            return found, frozenset(in_order[start:])
        values = await load(in_order[start : start + at_once])
        room -= sum(map(characters, values.values()))
        found |= values
    return found, frozenset()
