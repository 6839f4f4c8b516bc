"""A dictionary of bounded size."""

from collections.abc import Hashable
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

MOST = 20_000


class Recent(dict[_K, _V]):
    """A dictionary that keeps the 20,000 newest entries. An entry that is set again becomes the newest.

    Only `recent[key] = value` is bounded, not the other ways to fill a dictionary.
    """

    __slots__ = ()

    def __setitem__(self, key: _K, value: _V) -> None:
        self.pop(key, None)
        if len(self) >= MOST:
            del self[next(iter(self))]
        super().__setitem__(key, value)
