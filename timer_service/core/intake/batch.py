"""What the handlers of the slices share: how many commands of a batch one transaction loads and applies."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import OVER_QUOTA, Admission, Amounts
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command

_READ_AT_ONCE = 250
_FIRST_READ = 64
"""The keys of the first portion. Each portion has twice as many, so that much data is seen after a few rows."""
MOST_DATA = 2 * 1024 * 1024
"""How many characters of data the rows of one transaction may have. A single row may have more."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class Change(NamedTuple):
    """What a command would change."""

    keep: Callable[[], CommandResult]
    """Makes the change, for the commands after it and for what is written at the end. Returns the result."""
    growth: Amounts = MappingProxyType({})
    """How much more the tenant would have."""


async def apply_in_order(
    commands: Sequence[Command], admission: Admission | None, decide: Callable[[int], Change | None]
) -> list[CommandResult]:
    """Apply the first commands, at least one, for 50 ms. Return their results.

    `decide` returns the change of the command with a number, which sees the changes before it; None if the transaction
    has no room for it, never for the first one. A command that would exceed a limit of its tenant has no effect.
    """
    time = TransactionTime()
    results: list[CommandResult] = []
    while len(results) < len(commands) and await time.is_left():
        number = len(results)
        if (change := decide(number)) is None:
            break
        excess = await admission.exceeds(commands[number].tenant, change.growth) if admission else None
        results.append(change.keep() if excess is None else CommandResult(OVER_QUOTA, view=excess.view))
    return results


async def load_in_portions(
    keys: Iterable[_K],
    load: Callable[[Sequence[_K]], Awaitable[Mapping[_K, _V]]],
    characters: Callable[[_V], int],
    at_once: int = _READ_AT_ONCE,
) -> tuple[dict[_K, _V], frozenset[_K]]:
    """Load the values of keys, in order. Return those that exist, and the keys that are left.

    `characters` returns how much data a value has. The first values with 2 Mi characters are returned, at least one.
    The others are left, also if their portion was loaded. Each portion has at most `at_once` keys.
    """
    found: dict[_K, _V] = {}
    in_order = list(dict.fromkeys(keys))
    room = MOST_DATA
    start, count = 0, min(_FIRST_READ, at_once)
    while portion := in_order[start : start + count]:
        values = await load(portion)
        for index, key in enumerate(portion, start):
            if key not in values:
                continue
            room -= characters(values[key])
            if room < 0 and found:
                return found, frozenset(in_order[index:])
            found[key] = values[key]
        start += count
        count = min(2 * count, at_once)
    return found, frozenset()


def count_before(keys: Sequence[_K], left: Collection[_K]) -> int:
    """Return how many keys come before the first one that is left; all of them if none is."""
    if not left:
        return len(keys)
    return next((number for number, key in enumerate(keys) if key in left), len(keys))
