"""Reads and locks the rows that the changes of a batch can affect, as far as their data fits into one transaction."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from timer_service.core.due.portions import load_in_portions
from timer_service.core.ports.database import Transaction
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.core.values.errors import ConflictError
from timer_service.signals import store
from timer_service.signals.batch import MAX_INLINE_SIGNALS, Batch, Change, LoadedRows, named_items
from timer_service.signals.items import ItemKey, Transition
from timer_service.signals.signal import Signal, SignalCommand, Waiting

_ITEMS_AT_ONCE = 32
"""For how many work items the active signals are read at once. They have 7 Mi characters at most."""
_ROW_CHARACTERS = 500
"""What an active signal counts for besides its texts. So the number of rows is bounded too."""


async def load(tx: Transaction, changes: Sequence[Change], *, evaluating: bool) -> Batch:
    """Return the values that the changes can affect, and lock their rows: first the work items, then the signals.

    This includes the work items of all definitions of each signal, because a late command can make an older definition
    the current one. While the work items are locked, no other transaction can add transitions to them. A work item that
    does not exist cannot be locked: `save` finds out if another transaction has created it.

    If there is too much data, some rows are not read. `LoadedRows.include` tells for which changes all of them were.
    """
    keys = {change.key for change in changes if isinstance(change, SignalCommand)}
    found, signals_not_read = await store.find_in_portions(tx, keys)
    readable = [each for each in changes if not isinstance(each, SignalCommand) or each.key not in signals_not_read]
    affected = {item for change in readable for item in named_items(change)} | _items_of(found.values())
    items = await store.lock_items(tx, affected)
    signals = await store.find_locked(tx, keys - signals_not_read)
    if not _items_of(signals.values()) <= affected:
        raise ConflictError("another instance changed the work item of a signal")
    transitions = {(change.key, change.event_id) for change in changes if isinstance(change, Transition)}
    moved = {item for item, _ in transitions} if evaluating else set()
    waiting, items_not_read = await load_in_portions(
        moved, partial(_find_waiting, tx), _characters, _ITEMS_AT_ONCE, whole=True
    )
    known = await store.find_known_transitions(tx, transitions)
    return Batch(LoadedRows(items, signals, waiting, known, evaluating, signals_not_read, items_not_read))


async def _find_waiting(tx: Transaction, items: Collection[ItemKey]) -> Mapping[ItemKey, Sequence[Waiting]]:
    waiting = defaultdict[ItemKey, list[Waiting]](list)
    for each in await store.find_waiting(tx, [(item, "") for item in items], MAX_INLINE_SIGNALS + 1):
        waiting[each.item].append(each)
    return waiting


def _characters(waiting: Iterable[Waiting]) -> int:
    """Return how much data active signals have. A trigger that was not read counts as the longest."""
    sizes = (MAX_DATA_BYTES if each.signal is None else each.signal.characters for each in waiting)
    return sum(_ROW_CHARACTERS + size for size in sizes)


def _items_of(signals: Iterable[Signal]) -> set[ItemKey]:
    return {item for signal in signals for item in signal.items}
