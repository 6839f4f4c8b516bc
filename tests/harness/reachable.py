"""The objects of the service that an object holds, directly or through others."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any


def reachable(root: object) -> list[Any]:
    """Return every object that `root` holds, itself included."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) not in found and not isinstance(each, type):
            found[id(each)] = each
            waiting += _held(each)
    return list(found.values())


def attributes(objects: Iterable[Any], name: str) -> dict[str, set[Any]]:
    """Return the values of an attribute, by the types of its owners."""
    found: dict[str, set[Any]] = {}
    for each in objects:
        for attribute, value in _attributes(each):
            if attribute == name:
                found.setdefault(type(each).__name__, set()).add(value)
    return found


def _held(each: Any) -> Iterator[Any]:
    if isinstance(each, Mapping):
        yield from each.values()
    elif isinstance(each, list | tuple | set | frozenset | deque):
        yield from each
    elif isinstance(each, partial):
        yield from (each.func, *each.args, *each.keywords.values())
    elif isinstance(each, MethodType):
        yield each.__self__
    elif isinstance(each, FunctionType):
        yield from (cell.cell_contents for cell in each.__closure__ or ())
    else:
        yield from (value for _, value in _attributes(each))


def _attributes(each: Any) -> Iterator[tuple[str, Any]]:
    if type(each).__module__.startswith("timer_service"):
        yield from getattr(each, "__dict__", {}).items()
        slots = [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        yield from ((name, getattr(each, name)) for name in slots if hasattr(each, name))
