"""Reads and writes of work items, their transitions and signals."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.due.due_rows import DueTable
from timer_service.core.events.cause import cause_columns, read_cause
from timer_service.core.intake.batch import count_before, load_in_portions
from timer_service.core.limits.quotas import Usage
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.positions import position_columns, read_position
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.signals import firing_store
from timer_service.signals.batch import MAX_INLINE_SIGNALS, MAX_INLINE_TRIGGER, Batch, Change, LoadedRows
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import (
    Definition,
    ItemKey,
    Key,
    NewItem,
    Signal,
    SignalCommand,
    Status,
    Transition,
    Waiting,
)

_SQL = load_sql("timer_service.signals", "store.sql")
_SIGNAL = (
    *("tenant_id", "signal_id", "status", "work_item_id", "trigger_kind", "trigger_spec", "note", "created_at"),
    *("last_fired_at", "last_error", "ended_at", "defined_epoch", "defined_sequence", "since_epoch", "since_sequence"),
)
_TRANSITION = (
    *("tenant_id", "work_item_id", "event_id", "from_status", "to_status", "occurred_at", "recorded_at"),
    *("position_epoch", "position_sequence", "correlation_id", "causation_id", "traceparent", "tracestate"),
    *("evaluate_at", "evaluated_to"),
)
_SHORT_TRIGGER = f"CASE WHEN LENGTH(trigger_spec) <= {MAX_INLINE_TRIGGER} THEN trigger_spec END AS trigger_spec"
_SQL |= {
    "find": _SQL["find"].format(columns=", ".join(_SIGNAL)),
    "page": _SQL["page"].replace("{columns}", ", ".join(_SIGNAL)),
    "waiting": _SQL["waiting"].format(columns=", ".join(_SIGNAL).replace("trigger_spec", _SHORT_TRIGGER)),
    "put": _SQL["put"].format(
        columns=", ".join(_SIGNAL),
        values=", ".join(f":{name}" for name in _SIGNAL),
        updates=", ".join(f"{name} = excluded.{name}" for name in _SIGNAL[2:]),
    ),
    "add_event": _SQL["add_event"].format(
        columns=", ".join(_TRANSITION), values=", ".join(f":{name}" for name in _TRANSITION)
    ),
}
WAIT, SKIP = "/* for update */", "/* skip locked */"
_AT_ONCE = 32
"""How many signals, or work items with their active signals, are read at once. They have 7 Mi characters at most."""
_ROW_CHARACTERS = 500
"""What an active signal counts for besides its texts. So the number of rows is bounded too."""

UNEVALUATED = DueTable(
    name="work_item_events",
    key=("tenant_id", "work_item_id", "event_id"),
    order=("evaluate_at",),
    columns=_TRANSITION,
    where="evaluate_at IS NOT NULL",
)
"""The queue of transitions that wait for the evaluation worker."""

OPEN_SIGNALS = Usage("open_signals", _SQL["count_open"])
"""What limits count: the signals of a tenant that have not ended."""


async def load(tx: Transaction, changes: Sequence[Change], *, evaluating: bool) -> tuple[LoadedRows, int]:
    """Return what the first changes can affect, and their number: the changes behind too much data are left out.

    The rows of signals are locked, because workers change them. `evaluating`: also read the signals that wait for a
    transition.
    """
    keys = [change.key if isinstance(change, SignalCommand) else None for change in changes]
    signals, left = await lock_in_portions(tx, filter(None, keys))
    changes = changes[: count_before(keys, left)]
    moved = [change.key if evaluating and isinstance(change, Transition) else None for change in changes]
    waiting, items_left = await load_in_portions(
        filter(None, moved), partial(_find_first_waiting, tx), _characters_of_waiting, _AT_ONCE
    )
    changes = changes[: count_before(moved, items_left)]
    items = {change.key for change in changes if isinstance(change, NewItem)}
    transitions = {(change.key, change.event_id) for change in changes if isinstance(change, Transition)}
    loaded = LoadedRows(await _find_items(tx, items), signals, waiting, await _find_transitions(tx, transitions))
    return loaded, len(changes)


async def _find_items(tx: Transaction, keys: Collection[ItemKey]) -> frozenset[ItemKey]:
    """Return the work items that exist among `keys`."""
    rows = await tx.fetch_each(_SQL["find_item"], [key._asdict() for key in keys])
    return frozenset(ItemKey(row["tenant_id"], row["work_item_id"]) for row in rows)


async def _find_transitions(tx: Transaction, ids: Collection[tuple[ItemKey, str]]) -> frozenset[tuple[ItemKey, str]]:
    """Return the transitions that are stored among `ids`, each a work item and an event id."""
    rows = await tx.fetch_each(_SQL["find_event"], [{**item._asdict(), "event_id": event} for item, event in ids])
    return frozenset((ItemKey(row["tenant_id"], row["work_item_id"]), row["event_id"]) for row in rows)


async def _find_first_waiting(tx: Transaction, items: Collection[ItemKey]) -> Mapping[ItemKey, Sequence[Waiting]]:
    """Return the first active signals of work items: one more than a command matches, to see whether these are all."""
    waiting = defaultdict[ItemKey, list[Waiting]](list)
    for each in await find_waiting(tx, [(item, "") for item in items], MAX_INLINE_SIGNALS + 1):
        waiting[each.item].append(each)
    return waiting


def _characters_of_waiting(waiting: Iterable[Waiting]) -> int:
    """Return how much data active signals have. A trigger that was not read counts as the longest."""
    sizes = (MAX_DATA_BYTES if each.signal is None else each.signal.definition.characters for each in waiting)
    return sum(_ROW_CHARACTERS + size for size in sizes)


async def save(tx: Transaction, batch: Batch, now: int) -> int | None:
    """Write what the commands of a batch have changed. Return the next wake-up of a worker, or None."""
    await save_items(tx, batch.items, now)
    await save_signals(tx, batch.loaded.signals, batch.signals)
    await add_transitions(tx, batch.transitions.values())
    await firing_store.add(tx, batch.firings.values(), now)
    await firing_store.fail_unsettled(tx, batch.ended, now)
    wakes = [each.due_at for each in batch.firings.values() if (each.signal, each.defined) not in batch.ended]
    if batch.evaluating and any(transition.evaluate_at is not None for transition in batch.transitions.values()):
        wakes.append(now)  # for the evaluation worker
    return min(wakes, default=None)


async def save_signals(tx: Transaction, before: Mapping[Key, Signal], after: Mapping[Key, Signal]) -> None:
    """Write the signals that differ. The rows of `before` are locked."""
    changed = [signal for key, signal in sorted(after.items()) if before.get(key) != signal]
    await tx.executemany(_SQL["put"], list(map(_parameters, changed)))


async def save_items(tx: Transaction, statuses: Mapping[ItemKey, str | None], now: int) -> None:
    """Write the statuses of work items, in the order of their keys."""
    await tx.executemany(
        _SQL["put_item"],
        [{**item._asdict(), "status": status, "now": now} for item, status in sorted(statuses.items())],
    )


async def add_transitions(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Insert new transitions."""
    parameters = [
        {
            **_progress_parameters(transition),
            "from_status": transition.from_status,
            "to_status": transition.to_status,
            "occurred_at": transition.occurred_at,
            "recorded_at": transition.recorded_at,
            **position_columns(transition.position),
            **cause_columns(transition.cause),
        }
        for transition in transitions
    ]
    await tx.executemany(_SQL["add_event"], parameters)


async def save_progress(tx: Transaction, transitions: Iterable[Transition]) -> None:
    """Write how far the evaluation of transitions has come."""
    await tx.executemany(_SQL["note_evaluated"], list(map(_progress_parameters, transitions)))


def _progress_parameters(transition: Transition) -> Mapping[str, Any]:
    """Return the parameters of `note_evaluated`: the key of a transition, and how far its evaluation has come."""
    return {
        **transition.key._asdict(),
        "event_id": transition.event_id,
        "evaluate_at": transition.evaluate_at,
        "evaluated_to": transition.evaluated_to,
    }


async def find_waiting(reader: Reader, cursors: Collection[tuple[ItemKey, str]], limit: int) -> list[Waiting]:
    """Return the next active signals of work items.

    A cursor is a work item and a signal id. It leads to at most `limit` signals of the work item after that id. A
    trigger with more than `MAX_INLINE_TRIGGER` characters is not read.
    """
    parameters = [{**item._asdict(), "after": after, "limit": limit} for item, after in cursors]
    return [_read_waiting(row) for row in await reader.fetch_each(_SQL["waiting"], parameters)]


def _read_waiting(row: Row) -> Waiting:
    item = ItemKey(row["tenant_id"], row["work_item_id"])
    signal = None if row["trigger_spec"] is None else _read_signal(row)  # see `_SHORT_TRIGGER`
    return Waiting(Key(row["tenant_id"], row["signal_id"]), item, signal)


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Signal]:
    """Return the signals that exist among `keys`."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {signal.key: signal for signal in map(_read_signal, rows)}


async def find_locked(tx: Transaction, keys: Collection[Key], lock: str = WAIT) -> dict[Key, Signal]:
    """Like `find`, but lock the rows until the transaction ends, in the order of their keys.

    With `SKIP`, it never waits, and leaves out the signals that another session has locked.
    """
    rows = await tx.fetch_each(f"{_SQL['find']}\n{lock}", [key._asdict() for key in sorted(keys)])
    return {signal.key: signal for signal in map(_read_signal, rows)}


async def lock_in_portions(
    tx: Transaction, keys: Iterable[Key], lock: str = WAIT
) -> tuple[dict[Key, Signal], frozenset[Key]]:
    """Like `find_locked`, but stop if there is much data. Return the signals, and the keys that were not looked for."""
    return await load_in_portions(keys, partial(find_locked, tx, lock=lock), _characters, _AT_ONCE)


async def lock_free_keys(tx: Transaction, keys: Collection[Key]) -> set[Key]:
    """Lock signals that no other session has locked, also if they cannot be read. Return their keys."""
    rows = await tx.fetch_each(_SQL["lock_free_key"], [key._asdict() for key in sorted(keys)])
    return {Key(row["tenant_id"], row["signal_id"]) for row in rows}


async def pause(tx: Transaction, errors: Mapping[Key, str]) -> None:
    """Pause the signals of firings that were given up, with the errors, if they are active. They are locked."""
    await tx.executemany(_SQL["pause"], [{**key._asdict(), "error": error} for key, error in sorted(errors.items())])


def _characters(signal: Signal) -> int:
    return signal.definition.characters


async def page(
    reader: Reader, tenant_id: str, status: Status, *, item: str | None, after: str, limit: int
) -> list[Signal]:
    """Return the next signals of a tenant with a status after an id, in order of their ids. `item`: only of it."""
    of = "trigger_kind <> ''" if item is None else "work_item_id = :work_item_id"  # one index must answer all
    sql = _SQL["page"].format(where=f"{of} AND status = '{status}'")
    rows = await reader.fetch(sql, {"tenant_id": tenant_id, "work_item_id": item, "after": after, "limit": limit})
    return list(map(_read_signal, rows))


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete settled rows that are older than the instant `before`, up to `limit` of each kind.

    These are settled firings without a task, evaluated transitions and ended signals. The firings of these signals are
    deleted first: a signal with more firings stays for the next calls. A fired signal and its task stay until the
    signal is resolved. Return the number of deleted rows.
    """
    old = {"before": before, "limit": limit}
    ended = [Key(row["tenant_id"], row["signal_id"]) for row in await tx.fetch(_SQL["ended"], old)]
    firings = await firing_store.delete_of_signals(tx, ended, limit)
    signals = await tx.executemany(_SQL["delete"], [key._asdict() for key in ended])
    firings += await firing_store.delete_settled(tx, before, limit)
    transitions = await tx.execute(_SQL["delete_events"], old)
    return firings + signals + transitions


def _read_signal(row: Row) -> Signal:
    return Signal(
        key=Key(row["tenant_id"], row["signal_id"]),
        status=Status(row["status"]),
        definition=Definition(row["work_item_id"], TriggerKind(row["trigger_kind"]), row["trigger_spec"], row["note"]),
        defined=read_position(row, "defined"),
        since=read_position(row, "since"),
        created_at=row["created_at"],
        fired_at=row["last_fired_at"],
        last_error=row["last_error"],
        ended_at=row["ended_at"],
    )


def _parameters(signal: Signal) -> Mapping[str, Any]:
    return {
        **signal.key._asdict(),
        **signal.definition._asdict(),
        "status": signal.status,
        "created_at": signal.created_at,
        "last_fired_at": signal.fired_at,
        "last_error": signal.last_error,
        "ended_at": signal.ended_at,
        **position_columns(signal.defined, "defined"),
        **position_columns(signal.since, "since"),
    }


def read_transition(row: Row) -> Transition:
    """Return the transition in a row."""
    return Transition(
        key=ItemKey(row["tenant_id"], row["work_item_id"]),
        event_id=row["event_id"],
        from_status=row["from_status"],
        to_status=row["to_status"],
        occurred_at=row["occurred_at"],
        recorded_at=row["recorded_at"],
        position=read_position(row),
        cause=read_cause(row),
        evaluate_at=row["evaluate_at"],
        evaluated_to=row["evaluated_to"],
    )
