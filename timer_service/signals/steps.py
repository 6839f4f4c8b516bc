"""The steps of a signal and what each of them does to its state. Pure functions."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.values.message import Position
from timer_service.signals.items import UNKNOWN
from timer_service.signals.messages import Outcome, TriggerKind
from timer_service.signals.triggers import Invalid, TimeAt, Trigger, read_trigger


class Status(StrEnum):
    """The status of a signal."""

    ACTIVE = "active"
    PAUSED = "paused"
    FIRED = "fired"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.RESOLVED, Status.CANCELLED})


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


class Verb(StrEnum):
    """The kind of a step: a command on a signal, or the end of one of its firings."""

    CREATE = "create"
    PAUSE = "pause"
    ACTIVATE = "activate"
    CANCEL = "cancel"
    RESOLVE = "resolve"
    FIRE = "fire"
    GIVE_UP = "give up"


class Step(NamedTuple):
    """One command on a signal, or the end of one of its firings."""

    position: Position
    verb: Verb
    definition: Definition | None = None
    """The definition of a CREATE, or of the firing of a FIRE or GIVE_UP."""
    fired_at: int | None = None
    """The instant of a FIRE."""


class SignalState(NamedTuple):
    """The state of a signal after some steps. `definition` is None if no CREATE is known."""

    status: Status | None = None
    definition: Definition | None = None
    defined: Position = UNKNOWN
    """The position of the CREATE with the definition."""
    since: Position = UNKNOWN
    """Only transitions newer than this position fire the signal."""
    fired_at: int | None = None
    """The instant of the last firing."""

    @property
    def is_active(self) -> bool:
        """Whether the signal can fire."""
        return self.status is Status.ACTIVE

    @property
    def is_timed(self) -> bool:
        """Whether the signal waits for an instant."""
        return self.definition is not None and isinstance(self.definition.trigger, TimeAt)

    @property
    def is_live(self) -> bool:
        """Whether the signal exists and has not ended."""
        return self.status is not None and self.status not in ENDED


def apply_step(state: SignalState, step: Step) -> tuple[SignalState, Outcome]:
    """Apply one step to a state that includes all older steps. docs/signals.md has the table of outcomes."""
    match step.verb:
        case Verb.CREATE:
            return _create(state, step)
        case Verb.FIRE:
            counts = state.is_live and state.definition == step.definition
            fired = state._replace(status=Status.FIRED, fired_at=step.fired_at)
            return (fired if counts else state), Outcome.UNCHANGED
        case Verb.GIVE_UP:
            pauses = state.is_active and state.definition == step.definition
            return (state._replace(status=Status.PAUSED) if pauses else state), Outcome.UNCHANGED
    if state.status is None:
        return state, Outcome.NOT_FOUND
    if state.status is _TARGET_STATUS[step.verb]:
        return state, Outcome.UNCHANGED
    return (state, Outcome.ALREADY_ENDED) if state.status in ENDED else _change(state, step)


def _change(state: SignalState, step: Step) -> tuple[SignalState, Outcome]:
    """Apply a command that changes the status of a signal. The signal has not ended."""
    match step.verb:
        case Verb.RESOLVE:
            return state._replace(status=Status.RESOLVED), Outcome.RESOLVED
        case Verb.ACTIVATE:
            return _activate(state, step)
        case _ if state.status is Status.FIRED:
            return state, Outcome.ALREADY_FIRED
        case Verb.PAUSE:
            return state._replace(status=Status.PAUSED), Outcome.PAUSED
        case _:
            return state._replace(status=Status.CANCELLED), Outcome.CANCELLED


_TARGET_STATUS = {
    Verb.PAUSE: Status.PAUSED,
    Verb.ACTIVATE: Status.ACTIVE,
    Verb.CANCEL: Status.CANCELLED,
    Verb.RESOLVE: Status.RESOLVED,
}


def _create(state: SignalState, step: Step) -> tuple[SignalState, Outcome]:
    if state.is_live:
        return state, Outcome.UNCHANGED if state.definition == step.definition else Outcome.EXISTS
    invalid = step.definition is not None and isinstance(step.definition.trigger, Invalid)
    created = SignalState(Status.ACTIVE, step.definition, step.position, step.position)
    return created, Outcome.CREATED_INVALID if invalid else Outcome.CREATED


def _activate(state: SignalState, step: Step) -> tuple[SignalState, Outcome]:
    """Activate a signal. Older transitions no longer count. A timed signal whose instant has passed fires at once."""
    if state.is_timed and state.status is Status.FIRED:
        return state, Outcome.ALREADY_FIRED
    since = state.since if state.is_timed else step.position
    return state._replace(status=Status.ACTIVE, since=since), Outcome.ACTIVATED
