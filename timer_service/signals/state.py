"""One batch of commands on work items and signals: immutable values, and what each command makes of them. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from timer_service.core.data import dump_data
from timer_service.core.message import Command, Position
from timer_service.signals.firings import Firing, evaluate, firing_at
from timer_service.signals.items import Cause, ItemKey, NewItem, Transition, WorkItem, create_item, move_item
from timer_service.signals.messages import (
    ActivateWorkSignal,
    CancelWorkSignal,
    CreateWorkItem,
    CreateWorkSignal,
    Outcome,
    PauseWorkSignal,
    ResolveWorkSignal,
    SignalPayload,
    TransitionWorkItem,
)
from timer_service.signals.signals import (
    Definition,
    Key,
    Signal,
    SignalCommand,
    Step,
    Verb,
    apply_command,
    came_to_wait,
    reason_of_end,
)

AT_ONCE = 32
"""The most active signals of one work item that a transition is matched with in its command's transaction."""

COMMANDS = (
    CreateWorkItem,
    TransitionWorkItem,
    CreateWorkSignal,
    PauseWorkSignal,
    ActivateWorkSignal,
    CancelWorkSignal,
    ResolveWorkSignal,
)

_VERBS: Mapping[type, Verb] = {
    CreateWorkSignal: Verb.CREATE,
    PauseWorkSignal: Verb.PAUSE,
    ActivateWorkSignal: Verb.ACTIVATE,
    CancelWorkSignal: Verb.CANCEL,
    ResolveWorkSignal: Verb.RESOLVE,
}

Change = NewItem | Transition | SignalCommand
"""What a command asks for; its `key` says of what."""

K = TypeVar("K")
V = TypeVar("V")
_NOTHING: Mapping[object, object] = MappingProxyType({})


class Loaded(NamedTuple):
    """What was read and locked for a batch."""

    items: Mapping[ItemKey, WorkItem]
    """Every work item that a change of the batch can be about."""
    signals: Mapping[Key, Signal]
    """Those that commands name, and that exist."""
    waiting: Mapping[ItemKey, Sequence[Signal]]
    """The active signals of each work item that a transition names, at most `AT_ONCE` + 1 of each."""
    events: frozenset[tuple[ItemKey, str]]
    """Which transitions of the batch are known already."""
    evaluating: bool
    """Whether transitions are matched with signals here, or left to the worker."""


class State(NamedTuple):
    """What was loaded, and over it the values that the commands so far have made."""

    loaded: Loaded
    items: Mapping[ItemKey, WorkItem] = _NOTHING  # type: ignore[assignment]
    signals: Mapping[Key, Signal] = _NOTHING  # type: ignore[assignment]
    signals_of: Mapping[ItemKey, Mapping[Key, None]] = _NOTHING  # type: ignore[assignment]
    """Which of `signals` wait, or have waited, for each work item."""
    events: Mapping[ItemKey, Mapping[str, Transition]] = _NOTHING  # type: ignore[assignment]
    firings: Mapping[Key, Mapping[str, Firing]] = _NOTHING  # type: ignore[assignment]
    ended: Mapping[tuple[Key, Position], str] = _NOTHING  # type: ignore[assignment]
    """Why what was to fire by a signal's definition must not fire any more."""

    def signal(self, key: Key) -> Signal | None:
        """Return a signal that commands name."""
        return self.signals.get(key) or self.loaded.signals.get(key)

    def item(self, key: ItemKey) -> WorkItem:
        """Return a work item."""
        return self.items.get(key) or self.loaded.items[key]

    def waiting_for(self, item: ItemKey) -> list[Signal] | None:
        """Return the active signals of a work item; None if they are more than `AT_ONCE`."""
        loaded = self.loaded.waiting.get(item, ())
        if len(loaded) > AT_ONCE:  # there may be any number of others
            return None
        mine = [self.signals[key] for key in self.signals_of.get(item, ())]
        waiting = [each for each in loaded if each.key not in self.signals]
        waiting += [each for each in mine if each.standing.waits and each.item == item]
        return waiting if len(waiting) <= AT_ONCE else None


def read_change(command: Command, now: int) -> Change:
    """Return what a command asks for."""
    payload, position = command.payload, command.position
    cause = Cause(command.id, command.correlation_id, command.trace)
    match payload:
        case CreateWorkItem():
            return NewItem(ItemKey(payload.tenant_id, payload.work_item_id), payload.status, position)
        case TransitionWorkItem():
            return Transition(
                key=ItemKey(payload.tenant_id, payload.work_item_id),
                event_id=payload.event_id or command.id,
                from_status=payload.from_,
                to_status=payload.to,
                occurred_at=now if payload.occurred_at is None else payload.occurred_at,
                recorded_at=now,
                position=position,
                cause=cause,
                evaluate_at=now,
            )
        case _:
            assert isinstance(payload, SignalPayload)  # noqa: S101 - COMMANDS has no others
            step = Step(position, _VERBS[type(payload)], _definition(payload))
            return SignalCommand(Key(payload.tenant_id, payload.signal_id), step, cause)


def _definition(payload: SignalPayload) -> Definition | None:
    if not isinstance(payload, CreateWorkSignal):
        return None
    return Definition(payload.work_item_id, payload.trigger_kind, dump_data(payload.trigger_spec), payload.note)


def apply(state: State, change: Change, now: int) -> tuple[State, Outcome]:
    """Return the state after a change, and how its command ends."""
    match change:
        case NewItem():
            item, outcome = create_item(state.item(change.key), change)
            return _put_item(state, item), outcome
        case Transition():
            return _move(state, change)
        case SignalCommand():
            before = state.signal(change.key)
            signal, outcome = apply_command(before, change, now)
            return (state if signal is before else _follow(state, before, signal, change.cause, now)), outcome


def _move(state: State, event: Transition) -> tuple[State, Outcome]:
    key = event.key
    if (key, event.event_id) in state.loaded.events or event.event_id in state.events.get(key, ()):
        return state, Outcome.UNCHANGED
    item, outcome = move_item(state.item(key), event)
    return _evaluate(_put_item(state, item), event), outcome


def _evaluate(state: State, event: Transition) -> State:
    """Match a transition with the signals that wait, or leave it to the worker."""
    signals = state.waiting_for(event.key) if state.loaded.evaluating else None
    if signals is None:
        return _put_event(state, event)
    found, complete = evaluate(event, signals)
    for firing in found:
        state = _put_firing(state, firing)
    return _put_event(state, event._replace(evaluate_at=None) if complete else event)


def _follow(state: State, before: Signal | None, after: Signal, cause: Cause, now: int) -> State:
    """Return the state with a changed signal and what follows from its change."""
    state = state._replace(signals=_with(state.signals, after.key, after))
    if (item := after.item) is not None:
        keys = state.signals_of.get(item, {})
        state = state._replace(signals_of=_with(state.signals_of, item, _with(keys, after.key, None)))
    if before is not None and (reason := reason_of_end(before, after)) is not None:
        state = _end(state, after.key, before.standing.defined, reason)
    if not came_to_wait(before, after):
        return state
    if (timed := firing_at(after, cause)) is not None:
        return _put_firing(state, timed)
    return _look_back(state, after, now)


def _look_back(state: State, signal: Signal, now: int) -> State:
    """Leave to the worker the transitions of this batch that are newer than what a signal waits since."""
    if (item := signal.item) is None:
        return state
    newer = [each for each in state.events.get(item, {}).values() if each.position > signal.standing.since]
    for event in newer:
        state = _put_event(state, event._replace(evaluate_at=now))
    return state


def _end(state: State, signal: Key, defined: Position, reason: str) -> State:
    """Return the state with the firings of a signal by one definition failed, if they have not failed before."""
    first = state.ended.get((signal, defined), reason)
    state = state._replace(ended=_with(state.ended, (signal, defined), first))
    for firing in state.firings.get(signal, {}).values():
        if firing.defined == defined and firing.failed is None:
            state = _put_firing(state, firing._replace(failed=reason))
    return state


def _put_item(state: State, item: WorkItem) -> State:
    return state._replace(items=_with(state.items, item.key, item))


def _put_event(state: State, event: Transition) -> State:
    events = _with(state.events.get(event.key, {}), event.event_id, event)
    return state._replace(events=_with(state.events, event.key, events))


def _put_firing(state: State, firing: Firing) -> State:
    """Return the state with a firing; one that is there already is only queued again, or failed."""
    known = state.firings.get(firing.signal, {})
    firing_id = firing.firing_id
    firings = _with(known, firing_id, known.get(firing_id, firing)._replace(failed=firing.failed))
    return state._replace(firings=_with(state.firings, firing.signal, firings))


def _with(values: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """Return a copy with one more value. A batch changes some hundreds at most: a copy takes microseconds."""
    copied = dict(values)
    copied[key] = value
    return copied
