"""Signals: values and decisions. Pure.

A signal is what its commands and firings make of it, in the order of their positions. Its history holds the newest of
them; a command that is delivered late takes its place in the history, and the signal is computed from there.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.cause import Cause
from timer_service.core.message import Position
from timer_service.signals.items import UNKNOWN, ItemKey, Transition
from timer_service.signals.messages import Outcome, TriggerKind
from timer_service.signals.triggers import Invalid, StatusTransition, TimeAt, Trigger, read_trigger

_MOST_STEPS = 16
_MOST_HISTORY = 128 * 1024
"""Characters of the definitions that a history holds."""


class Key(NamedTuple):
    """Which signal."""

    tenant_id: str
    signal_id: str


class Status(StrEnum):
    """The status of a signal."""

    ACTIVE = "active"
    PAUSED = "paused"
    FIRED = "fired"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.RESOLVED, Status.CANCELLED})


class Definition(NamedTuple):
    """What a CreateWorkSignal asks for."""

    work_item_id: str | None
    trigger_kind: TriggerKind
    trigger_spec: str
    note: str | None

    @property
    def trigger(self) -> Trigger:
        """What the signal waits for."""
        return read_trigger(self.trigger_kind, self.trigger_spec, has_work_item=self.work_item_id is not None)


class Verb(StrEnum):
    """What a command does to a signal, or what becomes of one of its firings."""

    CREATE = "create"
    PAUSE = "pause"
    ACTIVATE = "activate"
    CANCEL = "cancel"
    RESOLVE = "resolve"
    FIRE = "fire"
    GIVE_UP = "give up"


_OF_FIRINGS = frozenset({Verb.FIRE, Verb.GIVE_UP})


class Step(NamedTuple):
    """One command on a signal, or the end of one of its firings."""

    position: Position
    verb: Verb
    definition: Definition | None = None
    """What a CREATE asks for, or the definition by which a FIRE or GIVE_UP happened."""
    fired_at: int | None = None
    """When a FIRE happened."""


class Standing(NamedTuple):
    """Where a signal stands after some steps. Without a definition no CREATE is known."""

    status: Status | None = None
    definition: Definition | None = None
    defined: Position = UNKNOWN
    """The position of the CREATE that gave the definition."""
    since: Position = UNKNOWN
    """It fires on transitions that are newer than this."""
    fired_at: int | None = None
    """When it fired last."""

    @property
    def waits(self) -> bool:
        """Whether it can fire."""
        return self.status is Status.ACTIVE

    @property
    def is_timed(self) -> bool:
        """Whether it waits for an instant."""
        return self.definition is not None and isinstance(self.definition.trigger, TimeAt)

    @property
    def is_live(self) -> bool:
        """Whether it exists and has not ended."""
        return self.status is not None and self.status not in ENDED


class History(NamedTuple):
    """The newest steps of a signal, in order, and where it stood before them."""

    steps: tuple[Step, ...] = ()
    base: Standing = Standing()
    forgotten: Position = UNKNOWN
    """The newest position whose step is part of `base`. What is not newer is ignored."""

    def result(self) -> Standing:
        """Return where the signal stands after all steps."""
        standing = self.base
        for step in self.steps:
            standing, _ = take(standing, step)
        return standing


class Signal(NamedTuple):
    """A signal. Without a definition it is a tombstone: it keeps commands that came before their CreateWorkSignal."""

    key: Key
    standing: Standing
    history: History
    created_at: int
    last_error: str | None = None
    unused_since: int | None = None
    """For a tombstone and a signal that has ended: when its last command was handled. Retention goes by it."""

    @property
    def item(self) -> ItemKey | None:
        """The work item it waits for."""
        definition = self.standing.definition
        named = definition and definition.work_item_id
        return ItemKey(self.key.tenant_id, named) if named else None

    @property
    def items(self) -> set[ItemKey]:
        """The work items that it waits for, or can come to wait for when a late command arrives."""
        steps = (step.definition for step in self.history.steps)
        definitions = (self.standing.definition, self.history.base.definition, *steps)
        return {ItemKey(self.key.tenant_id, each.work_item_id) for each in definitions if each and each.work_item_id}


class SignalCommand(NamedTuple):
    """A command on a signal."""

    key: Key
    step: Step
    cause: Cause


def take(standing: Standing, step: Step) -> tuple[Standing, Outcome]:
    """Decide one step where all older ones are known (the outcome table of docs/signals.md)."""
    match step.verb:
        case Verb.CREATE:
            return _create(standing, step)
        case Verb.FIRE:
            fires = standing.is_live and standing.definition == step.definition
            fired = standing._replace(status=Status.FIRED, fired_at=step.fired_at)
            return (fired if fires else standing), Outcome.UNCHANGED
        case Verb.GIVE_UP:
            pauses = standing.waits and standing.definition == step.definition
            return (standing._replace(status=Status.PAUSED) if pauses else standing), Outcome.UNCHANGED
    if standing.status is None:
        return standing, Outcome.NOT_FOUND
    if standing.status is _WANTED[step.verb]:
        return standing, Outcome.UNCHANGED
    return (standing, Outcome.ALREADY_ENDED) if standing.status in ENDED else _change(standing, step)


def _change(standing: Standing, step: Step) -> tuple[Standing, Outcome]:
    """Decide a command that wants another status of a signal that has not ended."""
    match step.verb:
        case Verb.RESOLVE:
            return standing._replace(status=Status.RESOLVED), Outcome.RESOLVED
        case Verb.ACTIVATE:
            return _activate(standing, step)
        case _ if standing.status is Status.FIRED:
            return standing, Outcome.ALREADY_FIRED
        case Verb.PAUSE:
            return standing._replace(status=Status.PAUSED), Outcome.PAUSED
        case _:
            return standing._replace(status=Status.CANCELLED), Outcome.CANCELLED


_WANTED = {
    Verb.PAUSE: Status.PAUSED,
    Verb.ACTIVATE: Status.ACTIVE,
    Verb.CANCEL: Status.CANCELLED,
    Verb.RESOLVE: Status.RESOLVED,
}


def _create(standing: Standing, step: Step) -> tuple[Standing, Outcome]:
    if standing.is_live:
        return standing, Outcome.UNCHANGED if standing.definition == step.definition else Outcome.EXISTS
    invalid = step.definition is not None and isinstance(step.definition.trigger, Invalid)
    made = Standing(Status.ACTIVE, step.definition, step.position, step.position)
    return made, Outcome.CREATED_INVALID if invalid else Outcome.CREATED


def _activate(standing: Standing, step: Step) -> tuple[Standing, Outcome]:
    """What has happened meanwhile does not count, but an instant that has passed does."""
    if standing.is_timed and standing.status is Status.FIRED:
        return standing, Outcome.ALREADY_FIRED
    since = standing.since if standing.is_timed else step.position
    return standing._replace(status=Status.ACTIVE, since=since), Outcome.ACTIVATED


def apply_command(signal: Signal | None, command: SignalCommand, now: int) -> tuple[Signal, Outcome]:
    """Decide a command on a signal, at its place among the commands that are known."""
    known = signal or Signal(command.key, Standing(), History(), now)
    history, step = known.history, command.step
    newest = max((each.position for each in history.steps if each.verb not in _OF_FIRINGS), default=history.forgotten)
    if step.position == newest != UNKNOWN:
        return known, Outcome.UNCHANGED
    again = any(each.position == step.position and each.verb not in _OF_FIRINGS for each in history.steps)
    if again or step.position <= history.forgotten:
        return known, Outcome.IGNORED_STALE
    older = tuple(each for each in history.steps if each.position < step.position)
    newer = history.steps[len(older) :]
    so_far = known.standing if not newer else History(older, history.base).result()
    standing, outcome = take(so_far, step)
    for each in newer:
        standing, _ = take(standing, each)
    changed = _with(known, (*older, step, *newer), standing, now)
    if step.position < newest and _is_overruled(known.standing, changed.standing, step):
        outcome = Outcome.IGNORED_STALE
    return changed, outcome


def _is_overruled(before: Standing, after: Standing, step: Step) -> bool:
    """Return whether newer commands leave nothing to see of a command that was delivered late."""
    if step.verb is Verb.CREATE:
        return after.defined != step.position or not after.is_live
    return before._replace(since=UNKNOWN) == after._replace(since=UNKNOWN)


def fire(signal: Signal, cause: Position, at: int) -> Signal:
    """Return an active signal after it has fired."""
    return _after_firing(signal, Verb.FIRE, cause, at)._replace(last_error=None)


def give_up(signal: Signal, cause: Position, error: str, at: int) -> Signal:
    """Return a signal after one of its firings was given up: an active one is paused, any other stays as it is."""
    if not signal.standing.waits:
        return signal
    return _after_firing(signal, Verb.GIVE_UP, cause, at)._replace(last_error=error)


def _after_firing(signal: Signal, verb: Verb, cause: Position, at: int) -> Signal:
    """Return a signal after the end of a firing: behind its cause and every command that is known by now."""
    steps = signal.history.steps
    newest = steps[-1].position if steps else signal.history.forgotten
    fired_at = at if verb is Verb.FIRE else None
    step = Step(max(newest, cause), verb, signal.standing.definition, fired_at)
    standing, _ = take(signal.standing, step)
    return _with(signal, (*steps, step), standing, at)


def _with(signal: Signal, steps: tuple[Step, ...], after: Standing, now: int) -> Signal:
    history = _shortened(History(steps, signal.history.base, signal.history.forgotten))
    before = signal.standing
    created_again = after.defined != before.defined
    activated = after.waits and not before.waits
    return signal._replace(
        standing=after,
        history=history,
        created_at=now if created_again else signal.created_at,
        last_error=None if created_again or activated else signal.last_error,
        unused_since=None if after.is_live else now,
    )


def _shortened(history: History) -> History:
    """Return a history with its oldest steps made part of its base, until it is short enough."""
    steps, base, forgotten = history
    while len(steps) > _MOST_STEPS or (len(steps) > 1 and _size(steps) > _MOST_HISTORY):
        base, _ = take(base, steps[0])
        forgotten = max(forgotten, steps[0].position)
        steps = steps[1:]
    return History(steps, base, forgotten)


def _size(steps: Iterable[Step]) -> int:
    definitions = {step.definition for step in steps if step.definition is not None}
    return sum(len(each.trigger_spec) + len(each.note or "") for each in definitions)


def reason_of_end(before: Signal, after: Signal) -> str | None:
    """Say why what was to fire before must not fire any more, None if it may."""
    if not before.standing.is_live or (after.standing.is_live and after.standing.defined == before.standing.defined):
        return None
    standing, history = after.history.base, after.history
    for step in history.steps:
        standing, _ = take(standing, step)
        if step.position > before.standing.defined and standing.status in ENDED:
            return f"the signal is {standing.status}"
    return "the signal has another definition now"


def came_to_wait(before: Signal | None, after: Signal) -> bool:
    """Return whether a signal waits for something that it did not wait for before."""
    return after.standing.waits and (before is None or before.standing != after.standing)


def matches(signal: Signal, event: Transition) -> bool:
    """Return whether a signal fires on a transition: it is active, waits for that, and has done so since before it."""
    standing = signal.standing
    if not standing.waits or standing.definition is None or signal.item != event.key:
        return False
    trigger = standing.definition.trigger
    return (
        isinstance(trigger, StatusTransition) and standing.since < event.position and trigger.matches(event.to_status)
    )
