"""Work items, their transitions and signals in the database: rows <-> values."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from timer_service.core.cause import cause_columns, read_cause
from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Position
from timer_service.core.sql import load_sql
from timer_service.signals import firing_store
from timer_service.signals.firing_store import position_of, position_parameters
from timer_service.signals.items import ItemKey, Transition, WorkItem
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signals import (
    Definition,
    History,
    Key,
    Signal,
    SignalCommand,
    Standing,
    Status,
    Step,
    Verb,
    came_to_wait,
)
from timer_service.signals.state import AT_ONCE, Change, Loaded, State

_SQL = load_sql("timer_service.signals", "store.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"
_NO_HISTORY = History()
_TOMBSTONE: Mapping[str, Any] = dict.fromkeys(Definition._fields)


async def load(tx: Transaction, changes: Sequence[Change], now: int, *, evaluating: bool) -> State:
    """Read and lock what changes are about: first the work items, then the signals.

    Besides the work items that the changes name, those of all definitions of their signals: a command, also one that is
    late, can make any of them count, and no other transaction may add transitions of its work item meanwhile.
    """
    keys = {change.key for change in changes if isinstance(change, SignalCommand)}
    named = {item for change in changes for item in _named_items(change)}
    items = await lock_items(tx, named | _items_of((await find(tx, keys)).values()), now)
    signals = await find_locked(tx, keys)
    if not _items_of(signals.values()) <= items.keys():
        raise ConflictError("a signal came to wait for another work item meanwhile")
    events = {(change.key, change.event_id) for change in changes if isinstance(change, Transition)}
    waiting: defaultdict[ItemKey, list[Signal]] = defaultdict(list)
    places = {(item, "") for item, _ in events} if evaluating else set()
    for signal in await waiting_signals(tx, places, AT_ONCE + 1):
        if signal.item is not None:
            waiting[signal.item].append(signal)
    return State(Loaded(items, signals, waiting, await known_events(tx, events), evaluating))


async def save(tx: Transaction, before: State, after: State, now: int) -> int | None:
    """Write the difference of two states of one batch; return when a worker has work to do, None if none has."""
    known = before.loaded
    await put_items(tx, [item for key, item in after.items.items() if item != known.items[key]])
    await save_signals(tx, known.signals, after.signals)
    pairs = [(known.signals.get(key), signal) for key, signal in after.signals.items()]
    again = await evaluate_again(tx, [signal for was, signal in pairs if came_to_wait(was, signal)], now)
    events = [event for each in after.events.values() for event in each.values()]
    await add_events(tx, events)
    await firing_store.end(tx, after.ended, now)
    firings = [firing for each in after.firings.values() for firing in each.values()]
    await firing_store.add(tx, firings, now)
    left = again or any(event.evaluate_at is not None for event in events)
    wakes = [firing.due_at for firing in firings if firing.failed is None]
    return min([*wakes, now] if left and known.evaluating else wakes, default=None)


async def save_signals(tx: Transaction, before: Mapping[Key, Signal], after: Mapping[Key, Signal]) -> None:
    """Write the difference of signals that are locked.

    Raises `ConflictError` if another instance has created one of them since it was looked for.
    """
    changed = [signal for key, signal in sorted(after.items()) if before.get(key) != signal]
    new = [signal for signal in changed if signal.key not in before]
    moved = [each for each in changed if each.key in before and _keeps_definition(before[each.key], each)]
    redefined = [each for each in changed if each.key in before and not _keeps_definition(before[each.key], each)]
    if await tx.executemany(_SQL["add"], list(map(_parameters, new))) != len(new):
        raise ConflictError("a signal was created by another instance")
    await tx.executemany(_SQL["put"], list(map(_parameters, redefined)))
    await tx.executemany(_SQL["move"], list(map(_moving, moved)))


def _keeps_definition(before: Signal, after: Signal) -> bool:
    return (before.standing.defined, before.created_at) == (after.standing.defined, after.created_at)


def _named_items(change: Change) -> set[ItemKey]:
    if not isinstance(change, SignalCommand):
        return {change.key}
    named = change.step.definition and change.step.definition.work_item_id
    return {ItemKey(change.key.tenant_id, named)} if named else set()


def _items_of(signals: Iterable[Signal]) -> set[ItemKey]:
    return {item for signal in signals for item in signal.items}


async def lock_items(tx: Transaction, keys: Collection[ItemKey], now: int) -> dict[ItemKey, WorkItem]:
    """Read work items; until the transaction ends no other one writes them, their transitions or waiting signals.

    One that is not known yet is inserted, so that there is a row to lock. Rows are locked in the order of their keys,
    so that instances that handle the same ones wait for each other in turn.
    """
    named = [key._asdict() for key in sorted(keys)]
    await tx.executemany(_SQL["name_item"], [{**key, "now": now} for key in named])
    return {item.key: item for item in map(_item, await tx.fetch_each(_SQL["find_item"], named))}


async def put_items(tx: Transaction, items: Iterable[WorkItem]) -> None:
    """Write work items that are locked."""
    parameters = [
        {
            **item.key._asdict(),
            "status": item.status,
            "created_epoch": item.created.epoch,
            "created_sequence": item.created.sequence,
            "moved_epoch": item.moved.epoch,
            "moved_sequence": item.moved.sequence,
        }
        for item in items
    ]
    await tx.executemany(_SQL["put_item"], parameters)


async def known_events(tx: Transaction, events: Iterable[tuple[ItemKey, str]]) -> frozenset[tuple[ItemKey, str]]:
    """Return which transitions, by work item and id, are there already."""
    asked = [{**item._asdict(), "event_id": event_id} for item, event_id in events]
    rows = await tx.fetch_each(_SQL["find_event"], asked)
    return frozenset((ItemKey(row["tenant_id"], row["work_item_id"]), row["event_id"]) for row in rows)


async def add_events(tx: Transaction, events: Iterable[Transition]) -> None:
    """Write new transitions."""
    await tx.executemany(_SQL["add_event"], [_event_parameters(event) for event in events])


async def evaluate_again(tx: Transaction, signals: Iterable[Signal], now: int) -> int:
    """Queue the transitions that are newer than what signals wait since; return how many rows it wrote.

    There are such only when the command that made a signal wait was delivered after them.
    """
    since: dict[ItemKey, Position] = {}
    for signal in signals:
        if signal.item is not None and not signal.standing.is_timed:
            since[signal.item] = min(signal.standing.since, since.get(signal.item, signal.standing.since))
    newer = [
        {**item._asdict(), "now": now, "since_epoch": oldest.epoch, "since_sequence": oldest.sequence}
        for item, oldest in sorted(since.items())
    ]
    return await tx.executemany(_SQL["evaluate_again"], newer)


async def waiting_tenants(tx: Transaction, after: str, limit: int) -> list[str]:
    """Return the next tenants behind `after` that have unevaluated transitions."""
    rows = await tx.fetch(_SQL["waiting_tenants"], {"after": after, "limit": limit})
    return [row["tenant_id"] for row in rows]


async def next_events(tx: Transaction, tenants: Sequence[str], limit: int) -> list[Transition]:
    """Lock each tenant's unevaluated transitions that have waited longest, up to `limit` of each tenant.

    Skips those that another instance has locked.
    """
    shares = [{"tenant_id": tenant, "limit": limit} for tenant in tenants]
    return [_event(row) for row in await tx.fetch_each(_SQL["next_events"], shares)]


async def note_evaluated(tx: Transaction, events: Iterable[Transition]) -> None:
    """Write how far transitions are evaluated."""
    parameters = [
        {
            **event.key._asdict(),
            "event_id": event.event_id,
            "evaluate_at": event.evaluate_at,
            "evaluated_to": event.evaluated_to,
        }
        for event in events
    ]
    await tx.executemany(_SQL["note_evaluated"], parameters)


async def waiting_signals(reader: Reader, places: Collection[tuple[ItemKey, str]], limit: int) -> list[Signal]:
    """Read, for each work item and signal id, the next active signals of that item behind that id, `limit` each."""
    parameters = [{**item._asdict(), "after": after, "limit": limit} for item, after in places]
    return [read_signal(row, _NO_HISTORY) for row in await reader.fetch_each(_SQL["waiting"], parameters)]


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Signal]:
    """Read the signals that exist among `keys`."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def find_locked(tx: Transaction, keys: Collection[Key]) -> dict[Key, Signal]:
    """Read the signals that exist among `keys`; until the transaction ends no other one writes them."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def page(
    reader: Reader, tenant_id: str, *, item: str | None, statuses: Sequence[Status], after: str, limit: int
) -> list[Signal]:
    """Read the next signals behind `after`, in order of their ids; all as they are at one moment."""
    if item is not None:  # then it is no tombstone; each condition is to have one index that answers it
        such = [f"work_item_id = :work_item_id AND status = '{status}'" for status in statuses]
    elif len(statuses) < len(Status):
        such = [f"trigger_kind IS NOT NULL AND status = '{status}'" for status in statuses]
    else:
        such = ["trigger_kind IS NOT NULL"]
    each = (_SQL["page"].format(where=each) for each in such)
    sql = "\nUNION ALL\n".join(f"SELECT * FROM ({page}) AS page" for page in each)  # noqa: S608 - all of it is ours
    parameters = {"tenant_id": tenant_id, "work_item_id": item, "after": after, "limit": limit}
    if item is None:
        del parameters["work_item_id"]
    rows = await reader.fetch(sql, parameters)
    return sorted((read_signal(row, _NO_HISTORY) for row in rows), key=lambda signal: signal.key)[:limit]


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` of each kind that were settled before an instant; return how many rows, tasks not counted.

    The kinds are firings, evaluated transitions, and with their tasks signals that have ended and tombstones. A fired
    signal stays, with its task, until it is resolved.
    """
    rows = await tx.fetch(_SQL["unused"], {"before": before, "limit": limit})
    unused = [{"tenant_id": row["tenant_id"], "signal_id": row["signal_id"]} for row in rows]
    await tx.executemany(_SQL["delete"], unused)
    await firing_store.delete_tasks(tx, [Key(**each) for each in unused])
    firings = await firing_store.delete_settled(tx, before, limit)
    return len(unused) + firings + await tx.execute(_SQL["delete_events"], {"before": before, "limit": limit})


def read_signal(row: Row, history: History | None = None) -> Signal:
    """Read a row of `work_signals`; with its history, unless that is given."""
    definition = None
    if row["trigger_kind"] is not None:
        kind = TriggerKind(row["trigger_kind"])
        definition = Definition(row["work_item_id"], kind, row["trigger_spec"], row["note"])
    return Signal(
        key=Key(row["tenant_id"], row["signal_id"]),
        standing=Standing(
            None if row["status"] is None else Status(row["status"]),
            definition,
            Position(row["defined_epoch"], row["defined_sequence"]),
            Position(row["since_epoch"], row["since_sequence"]),
            row["last_fired_at"],
        ),
        history=_read_history(row["history"], definition) if history is None else history,
        created_at=row["created_at"],
        last_error=row["last_error"],
        unused_since=row["unused_since"],
    )


def _moving(signal: Signal) -> Mapping[str, Any]:
    """Return the columns that a command can change without giving another definition."""
    standing = signal.standing
    return {
        **signal.key._asdict(),
        "status": standing.status,
        "last_fired_at": standing.fired_at,
        "last_error": signal.last_error,
        "unused_since": signal.unused_since,
        "since_epoch": standing.since.epoch,
        "since_sequence": standing.since.sequence,
        "history": _dump_history(signal.history, standing.definition),
    }


def _parameters(signal: Signal) -> Mapping[str, Any]:
    standing = signal.standing
    return {
        **_moving(signal),
        **(standing.definition._asdict() if standing.definition else _TOMBSTONE),
        "created_at": signal.created_at,
        "defined_epoch": standing.defined.epoch,
        "defined_sequence": standing.defined.sequence,
    }


def _dump_history(history: History, current: Definition | None) -> str:
    """Write a history as JSON: `[forgotten, base, definitions, steps]`.

    Definitions are numbered. Number 0 is the signal's own, which the row holds already; the others are in the list.
    """
    definitions = [current]

    def number(definition: Definition | None) -> int | None:
        if definition is None:
            return None
        if definition not in definitions:
            definitions.append(definition)
        return definitions.index(definition)

    status, definition, defined, since, fired_at = history.base
    base = None if status is None else [status, number(definition), *defined, *since, fired_at]
    steps = [(*step.position, step.verb, number(step.definition), step.fired_at) for step in history.steps]
    return to_json([history.forgotten, base, definitions[1:], steps]).decode()


def _read_history(text: str, current: Definition | None) -> History:
    forgotten, base, others, steps = from_json(text)
    definitions = [current, *(Definition(item, TriggerKind(kind), spec, note) for item, kind, spec, note in others)]
    standing = Standing()
    if base is not None:
        status, number, *positions, fired_at = base
        defined, since = Position(*positions[:2]), Position(*positions[2:])
        standing = Standing(Status(status), definitions[number], defined, since, fired_at)
    read = [
        Step(Position(epoch, sequence), Verb(verb), None if number is None else definitions[number], fired_at)
        for epoch, sequence, verb, number, fired_at in steps
    ]
    return History(tuple(read), standing, Position(*forgotten))


def _item(row: Row) -> WorkItem:
    return WorkItem(
        ItemKey(row["tenant_id"], row["work_item_id"]),
        row["status"],
        Position(row["created_epoch"], row["created_sequence"]),
        Position(row["moved_epoch"], row["moved_sequence"]),
    )


def _event(row: Row) -> Transition:
    return Transition(
        key=ItemKey(row["tenant_id"], row["work_item_id"]),
        event_id=row["event_id"],
        from_status=row["from_status"],
        to_status=row["to_status"],
        occurred_at=row["occurred_at"],
        recorded_at=row["recorded_at"],
        position=position_of(row),
        cause=read_cause(row),
        evaluate_at=row["evaluate_at"],
        evaluated_to=row["evaluated_to"],
    )


def _event_parameters(event: Transition) -> Mapping[str, Any]:
    return {
        **event.key._asdict(),
        "event_id": event.event_id,
        "from_status": event.from_status,
        "to_status": event.to_status,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
        **position_parameters(event.position),
        **cause_columns(event.cause),
        "evaluate_at": event.evaluate_at,
    }
