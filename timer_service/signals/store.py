"""Work items, what happened to them, and signals in the database: rows <-> rules."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Position, Trace
from timer_service.core.sql import load_sql
from timer_service.signals.messages import TriggerKind
from timer_service.signals.rules import Cause, Definition, ItemKey, Key, Signal, Status, Transition, WorkItem

_SQL = load_sql("timer_service.signals", "store.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"
_TOMBSTONE: Mapping[str, Any] = dict.fromkeys(Definition._fields)


async def lock_items(tx: Transaction, keys: Collection[ItemKey], now: int) -> dict[ItemKey, WorkItem]:
    """Read work items; until the transaction ends no other one writes them, their events or whom those concern.

    One that nobody has told of is made, so that there is something to lock. In the order of their keys, as all rows are
    locked: so instances that handle the same ones wait for each other in turn.
    """
    named = [key._asdict() for key in sorted(keys)]
    await tx.executemany(_SQL["name_item"], [{**key, "now": now} for key in named])
    return {item.key: item for item in map(_item, await tx.fetch_each(_SQL["find_item"], named))}


async def put_items(tx: Transaction, items: Iterable[WorkItem]) -> None:
    """Write work items that are locked."""
    parameters = [{**item.key._asdict(), "status": item.status, **_position(item.position)} for item in items]
    await tx.executemany(_SQL["put_item"], parameters)


async def known_events(tx: Transaction, events: Iterable[tuple[ItemKey, str]]) -> set[tuple[ItemKey, str]]:
    """Return which events, by work item and id, are there already."""
    asked = [{**item._asdict(), "event_id": event_id} for item, event_id in events]
    rows = await tx.fetch_each(_SQL["find_event"], asked)
    return {(ItemKey(row["tenant_id"], row["work_item_id"]), row["event_id"]) for row in rows}


async def add_events(tx: Transaction, events: Iterable[Transition]) -> None:
    """Write new events."""
    await tx.executemany(_SQL["add_event"], [_event_parameters(event) for event in events])


async def evaluate_again(tx: Transaction, signals: Iterable[Signal], now: int) -> int:
    """Put the events that are newer than what signals fire on back into the queue; return how many rows it wrote.

    There are such only when the command that made a signal active was delivered after them.
    """
    newer = [
        {
            **signal.item._asdict(),
            "now": now,
            "since_epoch": signal.since.epoch,
            "since_sequence": signal.since.sequence,
        }
        for signal in signals
        if signal.item is not None
    ]
    return await tx.executemany(_SQL["evaluate_again"], newer)


async def next_events(tx: Transaction, limit: int) -> list[Transition]:
    """Take events that are to be evaluated, those that have waited longest, and that no other instance has taken."""
    return [_event(row) for row in await tx.fetch(_SQL["next_events"], {"limit": limit})]


async def note_evaluated(tx: Transaction, events: Iterable[Transition]) -> None:
    """Write how far events are evaluated."""
    parameters = [
        {
            **event.item._asdict(),
            "event_id": event.event_id,
            "evaluate_at": event.evaluate_at,
            "evaluated_to": event.evaluated_to,
        }
        for event in events
    ]
    await tx.executemany(_SQL["note_evaluated"], parameters)


async def waiting(reader: Reader, places: Collection[tuple[ItemKey, str]], limit: int) -> list[Signal]:
    """Read, for each work item and signal id, the next active signals of that item behind that id, `limit` each."""
    parameters = [{**item._asdict(), "after": after, "limit": limit} for item, after in places]
    return [read_signal(row) for row in await reader.fetch_each(_SQL["waiting"], parameters)]


async def find(reader: Reader, keys: Collection[Key]) -> dict[Key, Signal]:
    """Read the signals that exist among `keys`."""
    rows = await reader.fetch_each(_SQL["find"], [key._asdict() for key in keys])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def find_locked(tx: Transaction, keys: Collection[Key]) -> dict[Key, Signal]:
    """Read the signals that exist among `keys`; until the transaction ends no other one writes them."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {signal.key: signal for signal in map(read_signal, rows)}


async def add(tx: Transaction, signals: Collection[Signal]) -> None:
    """Write new signals. Raises `ConflictError` if another instance has made one of them since it was looked for."""
    in_order = sorted(signals, key=lambda signal: signal.key)
    if await tx.executemany(_SQL["add"], [_parameters(signal) for signal in in_order]) != len(signals):
        raise ConflictError("a signal was created by another instance")


async def put(tx: Transaction, signals: Iterable[Signal]) -> None:
    """Write signals that are locked."""
    await tx.executemany(_SQL["put"], [_parameters(signal) for signal in signals])


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
    return sorted((read_signal(row) for row in rows), key=lambda signal: signal.key)[:limit]


async def delete_ended(tx: Transaction, before: int, limit: int) -> list[Key]:
    """Delete up to `limit` signals that ended before an instant; return which."""
    rows = await tx.fetch(_SQL["ended"], {"before": before, "limit": limit})
    keys = [Key(row["tenant_id"], row["signal_id"]) for row in rows]
    await tx.executemany(_SQL["delete"], [key._asdict() for key in keys])
    return keys


async def delete_events(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` events that are evaluated and were recorded before an instant; return how many."""
    return await tx.execute(_SQL["delete_events"], {"before": before, "limit": limit})


def read_cause(row: Row) -> Cause:
    """Read what a row says of the command that led to it."""
    return Cause(row["causation_id"], row["correlation_id"], Trace(row["traceparent"], row["tracestate"]))


def cause_parameters(cause: Cause) -> Mapping[str, Any]:
    """Return the columns that `read_cause` reads."""
    return {
        "causation_id": cause.command_id,
        "correlation_id": cause.correlation_id,
        "traceparent": cause.trace.traceparent,
        "tracestate": cause.trace.tracestate,
    }


def read_signal(row: Row) -> Signal:
    """Read a row of `work_signals`."""
    return Signal(
        key=Key(row["tenant_id"], row["signal_id"]),
        status=Status(row["status"]),
        position=Position(row["position_epoch"], row["position_sequence"]),
        since=Position(row["since_epoch"], row["since_sequence"]),
        created_at=row["created_at"],
        definition=_definition(row) if row["trigger_kind"] is not None else None,
        last_fired_at=row["last_fired_at"],
        last_error=row["last_error"],
        ended_at=row["ended_at"],
    )


def _definition(row: Row) -> Definition:
    return Definition(row["work_item_id"], TriggerKind(row["trigger_kind"]), row["trigger_spec"], row["note"])


def _parameters(signal: Signal) -> Mapping[str, Any]:
    return {
        **signal.key._asdict(),
        "status": signal.status,
        **(signal.definition._asdict() if signal.definition else _TOMBSTONE),
        "created_at": signal.created_at,
        "last_fired_at": signal.last_fired_at,
        "last_error": signal.last_error,
        "ended_at": signal.ended_at,
        **_since(signal),
        **_position(signal.position),
    }


def _item(row: Row) -> WorkItem:
    key = ItemKey(row["tenant_id"], row["work_item_id"])
    return WorkItem(key, row["status"], Position(row["position_epoch"], row["position_sequence"]))


def _event(row: Row) -> Transition:
    return Transition(
        item=ItemKey(row["tenant_id"], row["work_item_id"]),
        event_id=row["event_id"],
        from_status=row["from_status"],
        to_status=row["to_status"],
        occurred_at=row["occurred_at"],
        recorded_at=row["recorded_at"],
        position=Position(row["position_epoch"], row["position_sequence"]),
        cause=read_cause(row),
        evaluate_at=row["evaluate_at"],
        evaluated_to=row["evaluated_to"],
    )


def _event_parameters(event: Transition) -> Mapping[str, Any]:
    return {
        **event.item._asdict(),
        "event_id": event.event_id,
        "from_status": event.from_status,
        "to_status": event.to_status,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
        **_position(event.position),
        **cause_parameters(event.cause),
        "evaluate_at": event.evaluate_at,
    }


def _since(signal: Signal) -> Mapping[str, int]:
    return {"since_epoch": signal.since.epoch, "since_sequence": signal.since.sequence}


def _position(position: Position) -> Mapping[str, int]:
    return {"position_epoch": position.epoch, "position_sequence": position.sequence}
