"""A batch of commands on work items and signals: what the commands change, before it is written. No I/O."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timer_service.core.events.cause import Cause, cause_of
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position
from timer_service.signals.firings import Firing, evaluate, time_firing
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
    is_live,
)

MAX_INLINE_SIGNALS = 32
"""The most active signals of one work item that the transaction of a command matches with a transition."""
MAX_INLINE_TRIGGER = 4000
"""The most characters of the trigger of such a signal. 32 of these triggers are read in less than 10 ms."""

_STATUSES: Mapping[type, Status] = {
    CreateWorkSignal: Status.ACTIVE,
    PauseWorkSignal: Status.PAUSED,
    ActivateWorkSignal: Status.ACTIVE,
    CancelWorkSignal: Status.CANCELLED,
    ResolveWorkSignal: Status.RESOLVED,
}
"""The status that each command on a signal leads to."""
COMMANDS = (CreateWorkItem, TransitionWorkItem, *_STATUSES)

Change = NewItem | Transition | SignalCommand
"""The change that a command asks for. `key` is the key of a work item or of a signal."""


class LoadedRows(NamedTuple):
    """The values that were read for a batch."""

    items: frozenset[ItemKey]
    """The work items that commands of the batch create and that exist."""
    signals: Mapping[Key, Signal]
    """The signals that commands of the batch name and that exist. They are locked."""
    waiting: Mapping[ItemKey, Sequence[Waiting]]
    """For the work item of each transition: its active signals, at most `MAX_INLINE_SIGNALS` + 1."""
    transitions: frozenset[tuple[ItemKey, str]]
    """The transitions of the batch that are stored already, by work item and event id."""


class Batch:
    """The values of a batch while its commands are applied in order."""

    def __init__(self, loaded: LoadedRows, *, evaluating: bool) -> None:
        """`evaluating`: match transitions with signals. If not, the evaluation worker does it later."""
        self.loaded = loaded
        self.evaluating = evaluating
        self.signals = dict(loaded.signals)
        """The signals that commands of the batch name, as they are now."""
        self.items: dict[ItemKey, str | None] = {}
        """The new statuses of work items."""
        self.transitions: dict[tuple[ItemKey, str], Transition] = {}
        """The new transitions, by work item and event id."""
        self.firings: dict[str, Firing] = {}
        """The new firings, by their ids."""
        self.ended: dict[tuple[Key, Position], str] = {}
        """For each ended definition of a signal: the reason why its firings must not fire any longer."""
        self._signals_of = defaultdict[ItemKey, set[Key]](set)
        """For each work item: the signals that the batch has changed while they had this work item."""

    def create_item(self, new: NewItem) -> Outcome:
        """Apply a CreateWorkItem. The status of a work item that exists stays."""
        if new.key in self.loaded.items or new.key in self.items:
            return Outcome.UNCHANGED
        self.items[new.key] = new.status
        return Outcome.CREATED

    def move_item(self, transition: Transition) -> Outcome:
        """Apply a transition: match it with waiting signals, or leave it to the evaluation worker.

        A transition of a batch or of the table with the same event id is the same transition: it counts once.
        """
        key = (transition.key, transition.event_id)
        if key in self.loaded.transitions or key in self.transitions:
            return Outcome.UNCHANGED
        self.items[transition.key] = transition.to_status
        signals = self.waiting_for(transition.key) if self.evaluating else None
        self.transitions[key] = transition if signals is None else transition._replace(evaluate_at=None)
        for firing in evaluate(transition, signals or ()):
            self.firings[firing.firing_id] = firing
        return Outcome.TRANSITIONED

    def put_signal(self, signal: Signal, cause: Cause) -> None:
        """Replace a signal by its state after a command, with the effects on its firings."""
        before = self.signals.get(signal.key)
        if signal is before:
            return
        self.signals[signal.key] = signal
        if signal.item is not None:
            self._signals_of[signal.item].add(signal.key)
        if not is_live(signal):
            self.ended[signal.key, signal.defined] = f"the signal is {signal.status}"
        if signal.is_active and (timed := time_firing(signal, cause)) is not None:  # created, or activated again
            self.firings.setdefault(timed.firing_id, timed)

    def waiting_for(self, item: ItemKey) -> list[Signal] | None:
        """Return the active signals of a work item, as the batch has changed them so far.

        None if the evaluation worker matches them: there are more than `MAX_INLINE_SIGNALS`, or a trigger is long.
        """
        loaded = self.loaded.waiting.get(item, ())
        if len(loaded) > MAX_INLINE_SIGNALS:  # not all of them were loaded
            return None
        signals = {key: self.signals[key] for key in self._signals_of.get(item, ())}
        for key, _, signal in loaded:
            if signal is None and key not in signals:  # its trigger is long
                return None
            if signal is not None:
                signals.setdefault(key, signal)
        active = [each for each in signals.values() if each.is_active]
        longest = max((len(each.definition.trigger_spec) for each in active), default=0)
        return active if len(active) <= MAX_INLINE_SIGNALS and longest <= MAX_INLINE_TRIGGER else None


def read_change(command: Command, now: int) -> Change:
    """Return the change that a command asks for."""
    payload = command.payload
    match payload:
        case CreateWorkItem():
            return NewItem(ItemKey(payload.tenant_id, payload.work_item_id), payload.status)
        case TransitionWorkItem():
            return Transition(
                key=ItemKey(payload.tenant_id, payload.work_item_id),
                event_id=payload.event_id or command.id,
                from_status=payload.from_,
                to_status=payload.to,
                occurred_at=now if payload.occurred_at is None else payload.occurred_at,
                recorded_at=now,
                position=command.position,
                cause=cause_of(command),
                evaluate_at=now,
            )
        case _:
            assert isinstance(payload, SignalPayload)  # noqa: S101 - COMMANDS has no other payloads
            key = Key(payload.tenant_id, payload.signal_id)
            status = _STATUSES[type(payload)]
            return SignalCommand(key, status, command.position, cause_of(command), _definition(payload))


def _definition(payload: SignalPayload) -> Definition | None:
    """Return the definition of a CreateWorkSignal; None for a command that only changes the status."""
    if not isinstance(payload, CreateWorkSignal):
        return None
    return Definition(payload.work_item_id, payload.trigger_kind, dump_data(payload.trigger_spec), payload.note)
