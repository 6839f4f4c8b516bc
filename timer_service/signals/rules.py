"""What commands, transitions and firings do to signals. Pure: no I/O, no clock."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.instant import format_instant
from timer_service.core.message import Position, Trace
from timer_service.signals.messages import TriggerKind
from timer_service.signals.triggers import Invalid, StatusTransition, TimeAt, Trigger, read_trigger

UNKNOWN = Position(0, 0)
"""Where a work item stands that only signals know of."""


class Status(StrEnum):
    """Where a signal stands."""

    ACTIVE = "active"
    PAUSED = "paused"
    FIRED = "fired"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.RESOLVED, Status.CANCELLED})


class FiringStatus(StrEnum):
    """Where a firing stands."""

    QUEUED = "queued"
    PROCESSING = "processing"
    ENQUEUED = "enqueued"
    FAILED = "failed"


class Outcome(StrEnum):
    """How a command on a signal or a work item ends."""

    CREATED = "created"
    CREATED_INVALID = "created_invalid"
    EXISTS = "exists"
    TRANSITIONED = "transitioned"
    RECORDED = "recorded"
    PAUSED = "paused"
    ACTIVATED = "activated"
    CANCELLED = "cancelled"
    RESOLVED = "resolved"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_FIRED = "already_fired"
    ALREADY_ENDED = "already_ended"
    IGNORED_STALE = "ignored_stale"


class Key(NamedTuple):
    """Which signal."""

    tenant_id: str
    signal_id: str


class ItemKey(NamedTuple):
    """Which work item."""

    tenant_id: str
    work_item_id: str


class Cause(NamedTuple):
    """What an event gives back of the command that led to it."""

    command_id: str | None = None
    correlation_id: str | None = None
    trace: Trace = Trace()


class WorkItem(NamedTuple):
    """A work item as the rules see it; its position is that of the command that set its status."""

    key: ItemKey
    status: str | None
    position: Position


class Transition(NamedTuple):
    """A work item came to another status."""

    item: ItemKey
    event_id: str
    from_status: str | None
    to_status: str
    occurred_at: int
    recorded_at: int
    position: Position
    cause: Cause
    evaluate_at: int | None = None
    """Its place in the queue of those not yet evaluated; None once it is."""
    evaluated_to: str = ""
    """The last signal it was held against."""


class Definition(NamedTuple):
    """What a CreateWorkSignal asks for."""

    work_item_id: str | None
    trigger_kind: TriggerKind
    trigger_spec: str
    note: str | None

    @property
    def trigger(self) -> Trigger:
        """What it waits for."""
        return read_trigger(self.trigger_kind, self.trigger_spec, has_work_item=self.work_item_id is not None)


class Signal(NamedTuple):
    """A signal as the rules see it. Without a definition it is the tombstone of a command that came too early."""

    key: Key
    status: Status
    position: Position
    since: Position
    """What came before this it does not fire on."""
    created_at: int
    definition: Definition | None
    last_fired_at: int | None = None
    last_error: str | None = None
    ended_at: int | None = None

    @property
    def item(self) -> ItemKey | None:
        """The work item it waits for."""
        named = self.definition and self.definition.work_item_id
        return ItemKey(self.key.tenant_id, named) if named else None


class Firing(NamedTuple):
    """One cause that made one signal's trigger come true."""

    signal: Key
    dedupe_key: str
    work_item_id: str | None
    due_at: int
    cause: Cause

    @property
    def firing_id(self) -> str:
        """The same for the same signal and cause, however often it is found."""
        cause = "\0".join((*self.signal, self.dedupe_key))
        return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()


class Decision(NamedTuple):
    """What becomes of a signal, and whether that is to be written."""

    verdict: Outcome
    signal: Signal | None
    changed: bool = False


def create_item(item: WorkItem, status: str | None, position: Position) -> tuple[Outcome, WorkItem]:
    """Decide a CreateWorkItem: it never takes back a status that the item has come to."""
    if item.position == UNKNOWN:
        return Outcome.CREATED, item._replace(status=status, position=position)
    return (Outcome.IGNORED_STALE if item.position > position else Outcome.UNCHANGED), item


def transition(item: WorkItem, to: str, position: Position) -> tuple[Outcome, WorkItem]:
    """Decide a TransitionWorkItem that is new: it counts in any case, but a newer one's status stays."""
    if item.position > position:
        return Outcome.RECORDED, item
    return Outcome.TRANSITIONED, item._replace(status=to, position=position)


def create(signal: Signal | None, key: Key, wanted: Definition, position: Position, now: int) -> Decision:
    """Decide a CreateWorkSignal (the outcome table of docs/signals.md)."""
    made = Signal(key, Status.ACTIVE, position, position, now, wanted)
    verdict = Outcome.CREATED_INVALID if isinstance(wanted.trigger, Invalid) else Outcome.CREATED
    if signal is None:
        return Decision(verdict, made, changed=True)
    if signal.position > position and signal.definition is None and signal.status not in ENDED:
        late = made._replace(status=signal.status, position=signal.position, since=signal.since)
        return Decision(verdict, late, changed=True)
    if signal.position > position:
        return Decision(Outcome.IGNORED_STALE, signal)
    if signal.position == position:  # this very command, delivered again
        return Decision(Outcome.UNCHANGED, signal)
    if signal.definition is None or signal.status in ENDED:
        return Decision(verdict, made, changed=True)
    return _confirm(Outcome.UNCHANGED if signal.definition == wanted else Outcome.EXISTS, signal, position)


def pause(signal: Signal | None, key: Key, position: Position, now: int) -> Decision:
    """Decide a PauseWorkSignal. One that comes before its signal leaves a tombstone, as do those that end one."""
    if signal is None or _is_only_announced(signal, position):
        return _tombstone(key, Status.PAUSED, position, now)
    if known := _settled(signal, position, Status.PAUSED):
        return known
    if signal.status is Status.FIRED:
        return _confirm(Outcome.ALREADY_FIRED, signal, position)
    return Decision(Outcome.PAUSED, signal._replace(status=Status.PAUSED, position=position), changed=True)


def activate(signal: Signal | None, position: Position) -> Decision:
    """Decide an ActivateWorkSignal: what has happened meanwhile does not count, but an instant that has passed does."""
    if signal is None:
        return Decision(Outcome.NOT_FOUND, None)
    if _is_only_announced(signal, position):
        return _tombstone(signal.key, Status.ACTIVE, position, signal.created_at)
    if known := _settled(signal, position, Status.ACTIVE):
        return known
    assert signal.definition is not None  # noqa: S101 - a tombstone is announced or has ended
    timed = isinstance(signal.definition.trigger, TimeAt)
    if timed and signal.status is Status.FIRED:
        return _confirm(Outcome.ALREADY_FIRED, signal, position)
    since = signal.since if timed else position
    active = signal._replace(status=Status.ACTIVE, position=position, since=since, last_error=None)
    return Decision(Outcome.ACTIVATED, active, changed=True)


def cancel(signal: Signal | None, key: Key, position: Position, now: int) -> Decision:
    """Decide a CancelWorkSignal."""
    if signal is None or _is_only_announced(signal, position):
        return _tombstone(key, Status.CANCELLED, position, now)
    if known := _settled(signal, position, Status.CANCELLED):
        return known
    if signal.status is Status.FIRED:
        return _confirm(Outcome.ALREADY_FIRED, signal, position)
    return _end(Outcome.CANCELLED, Status.CANCELLED, signal, position, now)


def resolve(signal: Signal | None, key: Key, position: Position, now: int) -> Decision:
    """Decide a ResolveWorkSignal."""
    if signal is None or _is_only_announced(signal, position):
        return _tombstone(key, Status.RESOLVED, position, now)
    return _settled(signal, position, Status.RESOLVED) or _end(Outcome.RESOLVED, Status.RESOLVED, signal, position, now)


def matches(signal: Signal, event: Transition) -> bool:
    """Tell whether a signal fires on an event: it is active, waits for that, and has done so since before it."""
    if signal.status is not Status.ACTIVE or signal.definition is None or signal.item != event.item:
        return False
    trigger = signal.definition.trigger
    return isinstance(trigger, StatusTransition) and signal.since < event.position and trigger.matches(event.to_status)


def firing_on(signal: Signal, event: Transition) -> Firing:
    """Return what an event makes of a signal it matches."""
    return Firing(signal.key, event.event_id, event.item.work_item_id, event.recorded_at, event.cause)


def firing_at(signal: Signal, cause: Cause) -> Firing | None:
    """Return the firing of a signal that waits for an instant, None for others."""
    definition = signal.definition
    if definition is None or not isinstance(definition.trigger, TimeAt):
        return None
    # With the position, so that a signal that was ended and is created anew has a firing of its own.
    epoch, sequence = signal.since
    dedupe_key = f"{format_instant(definition.trigger.at)}/{epoch}-{sequence}"
    return Firing(signal.key, dedupe_key, definition.work_item_id, definition.trigger.at, cause)


def refusal(signal: Signal | None) -> str | None:
    """Say why a signal must not fire now, None if it may."""
    if signal is None:
        return "the signal does not exist any more"
    return None if signal.status is Status.ACTIVE else f"the signal is {signal.status}"


def _tombstone(key: Key, status: Status, position: Position, now: int) -> Decision:
    ended_at = now if status in ENDED else None
    tombstone = Signal(key, status, position, position, now, None, ended_at=ended_at)
    return Decision(Outcome.NOT_FOUND, tombstone, changed=True)


def _is_only_announced(signal: Signal, position: Position) -> bool:
    """Tell whether the signal is one to come, which a newer command says more of."""
    return signal.definition is None and signal.status not in ENDED and signal.position < position


def _settled(signal: Signal, position: Position, wanted: Status) -> Decision | None:
    """Decide a command that comes too late, was handled before, or finds what it wants or a signal that has ended."""
    if signal.position > position:
        return Decision(Outcome.IGNORED_STALE, signal)
    if signal.status is wanted or signal.position == position:
        return _confirm(Outcome.UNCHANGED, signal, position)
    if signal.status in ENDED:
        return _confirm(Outcome.ALREADY_ENDED, signal, position)
    return None


def _end(verdict: Outcome, status: Status, signal: Signal, position: Position, now: int) -> Decision:
    return Decision(verdict, signal._replace(status=status, position=position, ended_at=now), changed=True)


def _confirm(verdict: Outcome, signal: Signal, position: Position) -> Decision:
    return Decision(verdict, signal._replace(position=position), changed=signal.position != position)
