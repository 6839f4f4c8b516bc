"""Reads and writes of work items, their transitions and signals."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from timer_service.core.due.portions import load_in_portions
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import ConflictError
from timer_service.core.values.message import Position
from timer_service.signals import firing_store
from timer_service.signals.batch import MAX_INLINE_TRIGGER, Batch
from timer_service.signals.items import ItemKey, Transition, WorkItem
from timer_service.signals.rows import (
    item_parameters,
    read_item,
    read_signal,
    read_transition,
    signal_parameters,
    state_parameters,
    transition_parameters,
)
from timer_service.signals.signal import History, Key, Signal, Waiting, starts_waiting
from timer_service.signals.steps import Status

_SQL = load_sql("timer_service.signals", "store.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"
_NO_HISTORY = History()
_AT_ONCE = 32
"""How many signals are read at once. They have 7 Mi characters at most."""


async def save(tx: Transaction, before: Batch, after: Batch, now: int) -> int | None:
    """Write the values that differ between two states of a batch. Return the next wake-up of a worker, or None."""
    known = before.loaded
    await save_items(tx, known.items, after.items, now)
    await save_signals(tx, known.signals, after.signals)
    pairs = [(known.signals.get(key), signal) for key, signal in after.signals.items()]
    requeued = await requeue_newer_transitions(
        tx, [signal for old, signal in pairs if starts_waiting(old, signal)], now
    )
    transitions = [transition for by_id in after.transitions.values() for transition in by_id.values()]
    await add_transitions(tx, transitions)
    await firing_store.fail_unsettled(tx, after.ended, now)
    firings = [firing for by_id in after.firings.values() for firing in by_id.values()]
    await firing_store.add(tx, firings, now)
    is_left = bool(requeued) or any(transition.evaluate_at is not None for transition in transitions)
    wakes = [firing.due_at for firing in firings if firing.failed is None]
    return min([*wakes, now] if is_left and known.evaluating else wakes, default=None)


async def save_signals(tx: Transaction, before: Mapping[Key, Signal], after: Mapping[Key, Signal]) -> None:
    """Write the signals that differ. The rows of `before` are locked.

    Raises `ConflictError` if another instance has created one of the new signals since the read.
    """
    changed = [signal for key, signal in sorted(after.items()) if before.get(key) != signal]
    new = [signal for signal in changed if signal.key not in before]
    known = [signal for signal in changed if signal.key in before]
    same_definition = [signal for signal in known if _keeps_definition(before[signal.key], signal)]
    new_definition = [signal for signal in known if not _keeps_definition(before[signal.key], signal)]
    if await tx.executemany(_SQL["add"], list(map(signal_parameters, new))) != len(new):
        raise ConflictError("a signal was created by another instance")
    await tx.executemany(_SQL["put"], list(map(signal_parameters, new_definition)))
    await tx.executemany(_SQL["move"], list(map(state_parameters, same_definition)))


def _keeps_definition(before: Signal, after: Signal) -> bool:
    return (before.state.defined, before.created_at) == (after.state.defined, after.created_at)


async def lock_items(tx: Transaction, keys: Collection[ItemKey]) -> dict[ItemKey, WorkItem]:
    """Return the work items that exist, and lock them until the transaction ends.

    The lock also protects their transitions and waiting signals. Rows are locked in the order of their keys, so that
    instances cannot deadlock.
    """
    rows = await tx.fetch_each(_SQL["find_item"], [key._asdict() for key in sorted(keys)])
    return {item.key: item for item in map(read_item, rows)}


async def save_items(
    tx: Transaction, before: Mapping[ItemKey, WorkItem], after: Mapping[ItemKey, WorkItem], now: int
) -> None:
    """Write the work items that differ. The rows of `before` are locked.

    Raises `ConflictError` if another instance has created one of the new work items since the read. It may have added
    transitions or signals to it that this transaction has not seen.
    """
    changed = [item for key, item in sorted(after.items()) if before.get(key) != item]
    new = [{**item_parameters(item), "now": now} for item in changed if item.key not in before]
    if await tx.executemany(_SQL["add_item"], new) != len(new):
        raise ConflictError("a work item was created by another instance")
    await tx.executemany(_SQL["put_item"], [item_parameters(item) for item in changed if item.key in before])


async def find_known_transitions(
    tx: Transaction, transitions: Iterable[tuple[ItemKey, str]]
) -> frozenset[tuple[ItemKey, str]]:
    """Return the transitions that are stored already. A transition is given by its work item and event id."""
    parameters = [{**item._asdict(), "event_id": event_id} for item, event_id in transitions]
    rows = await tx.fetch_each(_SQL["find_event"], parameters)
    return frozenset((ItemKey(row["tenant_id"], row["work_item_id"]), row["event_id"]) for row in rows)


async def add_transitions(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Insert new transitions."""
    await tx.executemany(_SQL["add_event"], list(map(transition_parameters, transitions)))


async def requeue_newer_transitions(tx: Transaction, signals: Iterable[Signal], now: int) -> int:
    """Queue the stored transitions that are newer than `since` of a signal; return the number of transitions.

    Such transitions exist only if the command that made the signal wait was delivered after them.
    """
    since: dict[ItemKey, Position] = {}
    for signal in signals:
        if signal.item is not None and not signal.state.is_timed:
            since[signal.item] = min(signal.state.since, since.get(signal.item, signal.state.since))
    newer = [
        {**item._asdict(), "now": now, "since_epoch": oldest.epoch, "since_sequence": oldest.sequence}
        for item, oldest in sorted(since.items())
    ]
    return await tx.executemany(_SQL["evaluate_again"], newer)


async def find_waiting_tenants(tx: Transaction, after: str, limit: int) -> list[str]:
    """Return the next tenants after `after` that have unevaluated transitions."""
    rows = await tx.fetch(_SQL["waiting_tenants"], {"after": after, "limit": limit})
    return [row["tenant_id"] for row in rows]


async def lock_next_transitions(tx: Transaction, tenants: Sequence[str], limit: int) -> list[Transition]:
    """Lock and return the unevaluated transitions that have waited longest, at most `limit` for each tenant.

    Transitions that another instance has locked are skipped.
    """
    shares = [{"tenant_id": tenant, "limit": limit} for tenant in tenants]
    return [read_transition(row) for row in await tx.fetch_each(_SQL["next_events"], shares)]


async def save_progress(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Write how far the evaluation of transitions has come."""
    parameters = [
        {
            **transition.key._asdict(),
            "event_id": transition.event_id,
            "evaluate_at": transition.evaluate_at,
            "evaluated_to": transition.evaluated_to,
        }
        for transition in transitions
    ]
    await tx.executemany(_SQL["note_evaluated"], parameters)


async def find_waiting(reader: Reader, cursors: Collection[tuple[ItemKey, str]], limit: int) -> list[Waiting]:
    """Return the next active signals of work items, without their histories.

    A cursor is a work item and a signal id. It leads to at most `limit` signals of the work item after that id. A
    trigger with more than `MAX_INLINE_TRIGGER` characters is not read.
    """
    parameters = [
        {**item._asdict(), "after": after, "limit": limit, "longest": MAX_INLINE_TRIGGER} for item, after in cursors
    ]
    return [_read_waiting(row) for row in await reader.fetch_each(_SQL["waiting"], parameters)]


def _read_waiting(row: Row) -> Waiting:
    item = ItemKey(row["tenant_id"], row["work_item_id"])
    signal = None if row["trigger_spec"] is None else read_signal(row, _NO_HISTORY)
    return Waiting(Key(row["tenant_id"], row["signal_id"]), item, signal)


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Signal]:
    """Return the signals that exist among `keys`."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def find_shown(reader: Reader, key: Key) -> Signal | None:
    """Return a signal without its history, which no reply shows, or None if it does not exist."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict()])
    return read_signal(rows[0], _NO_HISTORY) if rows else None


async def find_locked(tx: Transaction, keys: Collection[Key]) -> dict[Key, Signal]:
    """Like `find`, but lock the rows until the transaction ends."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def find_in_portions(reader: Reader, keys: Collection[Key]) -> tuple[dict[Key, Signal], frozenset[Key]]:
    """Like `find`, but stop if there is much data. Return the signals, and the keys that were not looked for."""
    return await load_in_portions(keys, partial(find, reader), _characters, _AT_ONCE)


async def lock_in_portions(tx: Transaction, keys: Collection[Key]) -> tuple[dict[Key, Signal], frozenset[Key]]:
    """Like `find_in_portions`, but lock the rows until the transaction ends."""
    return await load_in_portions(keys, partial(find_locked, tx), _characters, _AT_ONCE)


def _characters(signal: Signal) -> int:
    return signal.characters


async def find_locked_by_others(tx: Transaction, keys: Collection[Key]) -> set[Key]:
    """Return the signals that another transaction has locked. Never waits."""
    named = [key._asdict() for key in sorted(keys)]
    free = {Key(row["tenant_id"], row["signal_id"]) for row in await tx.fetch_each(_SQL["find_free"], named)}
    return (await find(tx, keys)).keys() - free


async def page(
    reader: Reader, tenant_id: str, *, item: str | None, statuses: Sequence[Status], after: str, limit: int
) -> list[Signal]:
    """Return the next signals after the id `after` in order of their ids, from one snapshot of the table."""
    if item is not None:  # excludes tombstones; one index must answer each condition
        conditions = [f"work_item_id = :work_item_id AND status = '{status}'" for status in statuses]
    elif len(statuses) < len(Status):
        conditions = [f"trigger_kind IS NOT NULL AND status = '{status}'" for status in statuses]
    else:
        conditions = ["trigger_kind IS NOT NULL"]
    pages = (_SQL["page"].format(where=condition) for condition in conditions)
    sql = "\nUNION ALL\n".join(f"SELECT * FROM ({page}) AS page" for page in pages)  # noqa: S608 - no user input
    parameters = {"tenant_id": tenant_id, "work_item_id": item, "after": after, "limit": limit}
    if item is None:
        del parameters["work_item_id"]
    rows = await reader.fetch(sql, parameters)
    return sorted((read_signal(row, _NO_HISTORY) for row in rows), key=lambda signal: signal.key)[:limit]


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete settled rows that are older than the instant `before`, up to `limit` of each kind.

    These are settled firings, evaluated transitions, ended signals, and tombstones of signals. The tasks of these
    signals are deleted first: a signal with more tasks stays for the next calls. A fired signal and its task stay until
    the signal is resolved. Return the number of deleted rows.
    """
    rows = await tx.fetch(_SQL["unused"], {"before": before, "limit": limit})
    unused = [{"tenant_id": row["tenant_id"], "signal_id": row["signal_id"]} for row in rows]
    tasks = await firing_store.delete_tasks(tx, [Key(**key) for key in unused], limit)
    signals = await tx.executemany(_SQL["delete"], unused)
    firings = await firing_store.delete_settled(tx, before, limit)
    return tasks + signals + firings + await tx.execute(_SQL["delete_events"], {"before": before, "limit": limit})
