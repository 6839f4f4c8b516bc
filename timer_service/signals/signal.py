"""Signals and transitions of work items: their values and their rules. Pure functions."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.values.message import Position
from timer_service.signals.messages import Outcome, TriggerKind
from timer_service.signals.triggers import Invalid, StatusTransition, TimeAt, Trigger, read_trigger


class Status(StrEnum):
    """The status of a signal."""

    ACTIVE = "active"
    PAUSED = "paused"
    FIRED = "fired"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.RESOLVED, Status.CANCELLED})


class ItemKey(NamedTuple):
    """The key of a work item."""

    tenant_id: str
    work_item_id: str


class NewItem(NamedTuple):
    """The values of a CreateWorkItem command."""

    key: ItemKey
    status: str | None


class Transition(NamedTuple):
    """The values of a TransitionWorkItem command: a work item reached another status."""

    key: ItemKey
    event_id: str
    from_status: str | None
    to_status: str
    occurred_at: int
    recorded_at: int
    position: Position
    cause: Cause
    evaluate_at: int | None = None
    """The instant that orders the queue of unevaluated transitions. None if the transition is evaluated."""
    evaluated_to: str = ""
    """The id of the last signal that the evaluation worker matched with the transition."""


class Definition(NamedTuple):
    """The values of a CreateWorkSignal command."""

    work_item_id: str | None
    trigger_kind: TriggerKind
    trigger_spec: str
    note: str | None

    @property
    def trigger(self) -> Trigger:
        """The trigger that the signal waits for."""
        return read_trigger(self.trigger_kind, self.trigger_spec, has_work_item=self.work_item_id is not None)

    @property
    def characters(self) -> int:
        """How much data it has."""
        return len(self.trigger_spec) + len(self.note or "")


class Key(NamedTuple):
    """The key of a signal."""

    tenant_id: str
    signal_id: str


class Signal(NamedTuple):
    """A signal."""

    key: Key
    status: Status
    definition: Definition
    defined: Position
    """The position of the CreateWorkSignal."""
    since: Position
    """Only transitions newer than this position fire the signal."""
    created_at: int
    fired_at: int | None = None
    """The instant of the last firing."""
    last_error: str | None = None
    ended_at: int | None = None
    """When the signal was cancelled or resolved. Retention counts from this instant."""

    @property
    def item(self) -> ItemKey | None:
        """The work item of the signal, or None."""
        item_id = self.definition.work_item_id
        return None if item_id is None else ItemKey(self.key.tenant_id, item_id)

    @property
    def is_active(self) -> bool:
        """Whether the signal can fire."""
        return self.status is Status.ACTIVE

    @property
    def is_timed(self) -> bool:
        """Whether the signal waits for an instant."""
        return isinstance(self.definition.trigger, TimeAt)


class Waiting(NamedTuple):
    """An active signal of a work item."""

    key: Key
    item: ItemKey
    signal: Signal | None
    """None if its trigger is long and was not read."""


class SignalCommand(NamedTuple):
    """A command on a signal."""

    key: Key
    status: Status
    """The status that the command leads to."""
    position: Position
    cause: Cause
    definition: Definition | None = None
    """The definition of a CreateWorkSignal. None: the command only changes the status."""


_CHANGED = {
    Status.PAUSED: Outcome.PAUSED,
    Status.ACTIVE: Outcome.ACTIVATED,
    Status.CANCELLED: Outcome.CANCELLED,
    Status.RESOLVED: Outcome.RESOLVED,
}


def is_live(signal: Signal | None) -> bool:
    """Return whether a signal exists and has not ended."""
    return signal is not None and signal.status not in ENDED


def apply_command(signal: Signal | None, command: SignalCommand, now: int) -> tuple[Signal | None, Outcome]:
    """Return a signal after a command, and the outcome. contracts/outcomes.md has the outcomes."""
    if command.definition is not None:
        return _create(signal, command, command.definition, now)
    if signal is None:
        return None, Outcome.NOT_FOUND
    wanted = command.status
    if signal.status is wanted:
        return signal, Outcome.UNCHANGED
    if signal.status in ENDED:
        return signal, Outcome.ALREADY_ENDED
    fires_again = wanted is Status.ACTIVE and not signal.is_timed  # an instant comes once
    if signal.status is Status.FIRED and wanted is not Status.RESOLVED and not fires_again:
        return signal, Outcome.ALREADY_FIRED
    changed = signal._replace(status=wanted, ended_at=now if wanted in ENDED else None)
    if wanted is Status.ACTIVE:  # older transitions do not count, but an instant that has passed does
        changed = changed._replace(last_error=None, since=signal.since if signal.is_timed else command.position)
    return changed, _CHANGED[wanted]


def _create(signal: Signal | None, command: SignalCommand, definition: Definition, now: int) -> tuple[Signal, Outcome]:
    """Create a signal, unless one with its id exists that has not ended."""
    if signal is not None and is_live(signal):
        return signal, Outcome.UNCHANGED if signal.definition == definition else Outcome.EXISTS
    created = Signal(command.key, Status.ACTIVE, definition, command.position, command.position, now)
    return created, Outcome.CREATED_INVALID if isinstance(definition.trigger, Invalid) else Outcome.CREATED


def fire(signal: Signal, at: int) -> Signal:
    """Return an active signal after it has fired at an instant."""
    return signal._replace(status=Status.FIRED, fired_at=at, last_error=None)


def matches(signal: Signal, transition: Transition) -> bool:
    """Return whether a signal fires on a transition.

    The signal must be active, its trigger must match, and the transition must be newer than `since`.
    """
    if not signal.is_active or signal.item != transition.key or transition.position <= signal.since:
        return False
    trigger = signal.definition.trigger
    return isinstance(trigger, StatusTransition) and trigger.matches(transition.to_status)
