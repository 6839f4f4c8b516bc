"""A batch of commands on work items and signals: its immutable state and the effect of each command. Pure functions."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from timer_service.core.events.cause import Cause, cause_of
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position
from timer_service.signals.firings import Firing, evaluate, time_firing
from timer_service.signals.items import ItemKey, NewItem, Transition, WorkItem, create_item, move_item
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
from timer_service.signals.signal import Key, Signal, SignalCommand, Waiting, apply_command, explain_end, starts_waiting
from timer_service.signals.steps import Definition, Step, Verb

MAX_INLINE_SIGNALS = 32
"""The most active signals of one work item that the transaction of a command matches with a transition."""
MAX_INLINE_TRIGGER = 4000
"""The most characters of the trigger of such a signal. 32 of these triggers are read in less than 10 ms."""

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
"""The change that a command asks for. `key` is the key of a work item or of a signal."""

K = TypeVar("K")
V = TypeVar("V")
_EMPTY: Mapping[object, object] = MappingProxyType({})


class LoadedRows(NamedTuple):
    """The values that were read and locked for a batch."""

    items: Mapping[ItemKey, WorkItem]
    """The existing work items that a change of the batch can affect."""
    signals: Mapping[Key, Signal]
    """The existing signals that commands of the batch name."""
    waiting: Mapping[ItemKey, Sequence[Waiting]]
    """For the work item of each transition: its active signals, at most `MAX_INLINE_SIGNALS` + 1."""
    known_transitions: frozenset[tuple[ItemKey, str]]
    """The transitions of the batch that are stored already, by work item and event id."""
    evaluating: bool
    """Whether the batch matches transitions with signals. If not, the evaluation worker does it later."""
    signals_not_read: frozenset[Key] = frozenset()
    """The signals that commands of the batch name and that were not read, because there is too much data."""
    items_not_read: frozenset[ItemKey] = frozenset()
    """The work items of transitions whose active signals were not read for the same reason."""

    def include(self, change: Change) -> bool:
        """Return whether the rows that a change needs were read."""
        if isinstance(change, SignalCommand):
            return change.key not in self.signals_not_read
        return change.key not in self.items_not_read


class Batch(NamedTuple):
    """The loaded values, and the values that the commands have changed so far."""

    loaded: LoadedRows
    items: Mapping[ItemKey, WorkItem] = _EMPTY  # type: ignore[assignment]
    signals: Mapping[Key, Signal] = _EMPTY  # type: ignore[assignment]
    signals_of: Mapping[ItemKey, Mapping[Key, None]] = _EMPTY  # type: ignore[assignment]
    """For each work item: the keys in `signals` that wait or have waited for it."""
    transitions: Mapping[ItemKey, Mapping[str, Transition]] = _EMPTY  # type: ignore[assignment]
    firings: Mapping[Key, Mapping[str, Firing]] = _EMPTY  # type: ignore[assignment]
    firing_count: int = 0
    """How many firings there are in `firings`."""
    ended: Mapping[tuple[Key, Position], str] = _EMPTY  # type: ignore[assignment]
    """For each ended definition of a signal: the reason why its firings must not fire any longer."""

    def signal(self, key: Key) -> Signal | None:
        """Return a signal that a command of the batch names, or None if there is no such signal."""
        return self.signals.get(key) or self.loaded.signals.get(key)

    def item(self, key: ItemKey) -> WorkItem:
        """Return a work item of the batch. If there is no such work item yet, it is empty."""
        return self.items.get(key) or self.loaded.items.get(key) or WorkItem(key)

    def waiting_for(self, item: ItemKey) -> list[Signal] | None:
        """Return the active signals of a work item, or None if the evaluation worker matches them.

        It does so if there are more than `MAX_INLINE_SIGNALS`, or one trigger is longer than `MAX_INLINE_TRIGGER`.
        """
        loaded = self.loaded.waiting.get(item, ())
        if len(loaded) > MAX_INLINE_SIGNALS:  # not all of them were loaded
            return None
        changed = [self.signals[key] for key in self.signals_of.get(item, ())]
        waiting = [each.signal for each in loaded if each.key not in self.signals]
        waiting += [signal for signal in changed if signal.state.is_active and signal.item == item]
        short = [signal for signal in waiting if signal is not None and _has_short_trigger(signal)]
        return short if len(short) == len(waiting) <= MAX_INLINE_SIGNALS else None


def _has_short_trigger(signal: Signal) -> bool:
    definition = signal.state.definition
    return definition is None or len(definition.trigger_spec) <= MAX_INLINE_TRIGGER


def read_change(command: Command, now: int) -> Change:
    """Return the change that a command asks for."""
    payload, position = command.payload, command.position
    cause = cause_of(command)
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
            assert isinstance(payload, SignalPayload)  # noqa: S101 - COMMANDS has no other payloads
            step = Step(position, _VERBS[type(payload)], _definition(payload))
            return SignalCommand(Key(payload.tenant_id, payload.signal_id), step, cause)


def named_items(change: Change) -> set[ItemKey]:
    """Return the work items that a change names: one or none."""
    if not isinstance(change, SignalCommand):
        return {change.key}
    item_id = change.step.definition and change.step.definition.work_item_id
    return {ItemKey(change.key.tenant_id, item_id)} if item_id else set()


def _definition(payload: SignalPayload) -> Definition | None:
    if not isinstance(payload, CreateWorkSignal):
        return None
    return Definition(payload.work_item_id, payload.trigger_kind, dump_data(payload.trigger_spec), payload.note)


def apply(batch: Batch, change: Change, now: int) -> tuple[Batch, Outcome]:
    """Return the batch after a change, and the outcome of its command."""
    match change:
        case NewItem():
            item, outcome = create_item(batch.item(change.key), change)
            return _put_item(batch, item), outcome
        case Transition():
            return _apply_transition(batch, change)
        case SignalCommand():
            batch = _name_items(batch, change)
            before = batch.signal(change.key)
            signal, outcome = apply_command(before, change, now)
            return (batch if signal is before else _put_signal(batch, before, signal, change.cause, now)), outcome


def _name_items(batch: Batch, change: Change) -> Batch:
    """Return the batch with the work items that a change names: they exist from now on."""
    for key in named_items(change):
        batch = _put_item(batch, batch.item(key))
    return batch


def _apply_transition(batch: Batch, transition: Transition) -> tuple[Batch, Outcome]:
    key = transition.key
    is_stored = (key, transition.event_id) in batch.loaded.known_transitions
    if is_stored or transition.event_id in batch.transitions.get(key, ()):
        return batch, Outcome.UNCHANGED
    item, outcome = move_item(batch.item(key), transition)
    return _evaluate(_put_item(batch, item), transition), outcome


def _evaluate(batch: Batch, transition: Transition) -> Batch:
    """Match a transition with waiting signals, or leave it to the evaluation worker."""
    signals = batch.waiting_for(transition.key) if batch.loaded.evaluating else None
    if signals is None:
        return _put_transition(batch, transition)
    found, complete = evaluate(transition, signals)
    for firing in found:
        batch = _put_firing(batch, firing)
    return _put_transition(batch, transition._replace(evaluate_at=None) if complete else transition)


def _put_signal(batch: Batch, before: Signal | None, after: Signal, cause: Cause, now: int) -> Batch:
    """Return the batch with a changed signal, and with the effects of the change on firings and transitions."""
    batch = batch._replace(signals=_with(batch.signals, after.key, after))
    if (item := after.item) is not None:
        keys = batch.signals_of.get(item, {})
        batch = batch._replace(signals_of=_with(batch.signals_of, item, _with(keys, after.key, None)))
    if before is not None and (reason := explain_end(before, after)) is not None:
        batch = _end_definition(batch, after.key, before.state.defined, reason)
    if not starts_waiting(before, after):
        return batch
    if (timed := time_firing(after, cause)) is not None:
        return _put_firing(batch, timed)
    return _reevaluate_newer_transitions(batch, after, now)


def _reevaluate_newer_transitions(batch: Batch, signal: Signal, now: int) -> Batch:
    """Queue transitions of this batch for the worker if they are newer than `since` of a signal."""
    if (item := signal.item) is None:
        return batch
    for transition in batch.transitions.get(item, {}).values():
        if transition.position > signal.state.since:
            batch = _put_transition(batch, transition._replace(evaluate_at=now))
    return batch


def _end_definition(batch: Batch, signal: Key, defined: Position, reason: str) -> Batch:
    """Return the batch with the firings of one definition of a signal set to failed. Keep an earlier reason."""
    first = batch.ended.get((signal, defined), reason)
    batch = batch._replace(ended=_with(batch.ended, (signal, defined), first))
    for firing in batch.firings.get(signal, {}).values():
        if firing.defined == defined and firing.failed is None:
            batch = _put_firing(batch, firing._replace(failed=reason))
    return batch


def _put_item(batch: Batch, item: WorkItem) -> Batch:
    return batch._replace(items=_with(batch.items, item.key, item))


def _put_transition(batch: Batch, transition: Transition) -> Batch:
    transitions = _with(batch.transitions.get(transition.key, {}), transition.event_id, transition)
    return batch._replace(transitions=_with(batch.transitions, transition.key, transitions))


def _put_firing(batch: Batch, firing: Firing) -> Batch:
    """Return the batch with a firing added. If the batch already has this firing, only `failed` changes."""
    known = batch.firings.get(firing.signal, {})
    firing_id = firing.firing_id
    firings = _with(known, firing_id, known.get(firing_id, firing)._replace(failed=firing.failed))
    count = batch.firing_count + len(firings) - len(known)
    return batch._replace(firings=_with(batch.firings, firing.signal, firings), firing_count=count)


def _with(values: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """Return a copy of a mapping with one more value.

    A mapping has at most some hundred values, so a copy takes microseconds.
    """
    copied = dict(values)
    copied[key] = value
    return copied
