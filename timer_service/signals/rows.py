"""The rows of signals, work items and transitions: how a value is written into columns, and read from them."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from timer_service.core.events.cause import cause_columns, read_cause
from timer_service.core.ports.database import Row
from timer_service.core.values.message import Position
from timer_service.signals.firing_store import position_of, position_parameters
from timer_service.signals.items import ItemKey, Transition, WorkItem
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import History, Key, Signal
from timer_service.signals.steps import Definition, SignalState, Status, Step, Verb

_TOMBSTONE: Mapping[str, Any] = dict.fromkeys(Definition._fields)


def read_signal(row: Row, history: History | None = None) -> Signal:
    """Return the signal in a row of `work_signals`. `history` replaces the history in the row."""
    definition = None
    if row["trigger_kind"] is not None:
        kind = TriggerKind(row["trigger_kind"])
        definition = Definition(row["work_item_id"], kind, row["trigger_spec"], row["note"])
    return Signal(
        key=Key(row["tenant_id"], row["signal_id"]),
        state=SignalState(
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


def state_parameters(signal: Signal) -> Mapping[str, Any]:
    """Return the columns that a command can change if it does not change the definition."""
    state = signal.state
    return {
        **signal.key._asdict(),
        "status": state.status,
        "last_fired_at": state.fired_at,
        "last_error": signal.last_error,
        "unused_since": signal.unused_since,
        "since_epoch": state.since.epoch,
        "since_sequence": state.since.sequence,
        "history": _dump_history(signal.history, state.definition),
    }


def signal_parameters(signal: Signal) -> Mapping[str, Any]:
    """Return all columns of a signal."""
    state = signal.state
    return {
        **state_parameters(signal),
        **(state.definition._asdict() if state.definition else _TOMBSTONE),
        "created_at": signal.created_at,
        "defined_epoch": state.defined.epoch,
        "defined_sequence": state.defined.sequence,
    }


def _dump_history(history: History, current: Definition | None) -> str:
    """Return a history as JSON: `[forgotten, base, definitions, steps]`.

    Definitions have numbers. Number 0 is the current definition, which the row holds in columns. The list `definitions`
    has the others.
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
    state = SignalState()
    if base is not None:
        status, number, *positions, fired_at = base
        defined, since = Position(*positions[:2]), Position(*positions[2:])
        state = SignalState(Status(status), definitions[number], defined, since, fired_at)
    read = [
        Step(Position(epoch, sequence), Verb(verb), None if number is None else definitions[number], fired_at)
        for epoch, sequence, verb, number, fired_at in steps
    ]
    return History(tuple(read), state, Position(*forgotten))


def read_item(row: Row) -> WorkItem:
    """Return the work item in a row."""
    return WorkItem(
        ItemKey(row["tenant_id"], row["work_item_id"]),
        row["status"],
        Position(row["created_epoch"], row["created_sequence"]),
        Position(row["moved_epoch"], row["moved_sequence"]),
    )


def item_parameters(item: WorkItem) -> Mapping[str, Any]:
    """Return the columns of a work item."""
    return {
        **item.key._asdict(),
        "status": item.status,
        "created_epoch": item.created.epoch,
        "created_sequence": item.created.sequence,
        "moved_epoch": item.moved.epoch,
        "moved_sequence": item.moved.sequence,
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
        position=position_of(row),
        cause=read_cause(row),
        evaluate_at=row["evaluate_at"],
        evaluated_to=row["evaluated_to"],
    )


def transition_parameters(transition: Transition) -> Mapping[str, Any]:
    """Return the columns of a new transition."""
    return {
        **transition.key._asdict(),
        "event_id": transition.event_id,
        "from_status": transition.from_status,
        "to_status": transition.to_status,
        "occurred_at": transition.occurred_at,
        "recorded_at": transition.recorded_at,
        **position_parameters(transition.position),
        **cause_columns(transition.cause),
        "evaluate_at": transition.evaluate_at,
    }
