"""The value `Signal` and its rules. Pure functions.

The state of a signal follows from its commands and firings, in the order of their positions. The newest commands and
firings are the steps of its history; `steps` has what each of them does. A late command is inserted into the history at
its position, and the state is computed again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.values.message import Position
from timer_service.signals.items import UNKNOWN, ItemKey, Transition
from timer_service.signals.messages import Outcome
from timer_service.signals.steps import ENDED, Definition, SignalState, Step, Verb, apply_step
from timer_service.signals.triggers import StatusTransition

_FIRING_VERBS = frozenset({Verb.FIRE, Verb.GIVE_UP})
_MAX_STEPS = 16
_MAX_HISTORY = 128 * 1024
"""The most characters of definitions in one history."""


class Key(NamedTuple):
    """The key of a signal."""

    tenant_id: str
    signal_id: str


class History(NamedTuple):
    """The newest steps of a signal in order, and its state before them."""

    steps: tuple[Step, ...] = ()
    base: SignalState = SignalState()
    forgotten: Position = UNKNOWN
    """The position of the newest step in `base`. A command that is not newer is ignored."""

    def result(self) -> SignalState:
        """Return the state of the signal after all steps."""
        state = self.base
        for step in self.steps:
            state, _ = apply_step(state, step)
        return state


class Signal(NamedTuple):
    """A signal, or a tombstone if it has no definition.

    A tombstone keeps the commands that were delivered before their CreateWorkSignal.
    """

    key: Key
    state: SignalState
    history: History
    created_at: int
    last_error: str | None = None
    unused_since: int | None = None
    """When the last command on a tombstone or an ended signal was handled. Retention counts from this instant."""

    @property
    def item(self) -> ItemKey | None:
        """The work item of the signal, or None."""
        definition = self.state.definition
        item_id = definition and definition.work_item_id
        return ItemKey(self.key.tenant_id, item_id) if item_id else None

    @property
    def definitions(self) -> set[Definition]:
        """All its definitions. A late command can make any of them the current one."""
        steps = (step.definition for step in self.history.steps)
        definitions = (self.state.definition, self.history.base.definition, *steps)
        return {definition for definition in definitions if definition is not None}

    @property
    def items(self) -> set[ItemKey]:
        """The work items of all its definitions."""
        item_ids = {definition.work_item_id for definition in self.definitions}
        return {ItemKey(self.key.tenant_id, item_id) for item_id in item_ids if item_id}

    @property
    def characters(self) -> int:
        """How much data its definitions have."""
        return sum(definition.characters for definition in self.definitions)


class Waiting(NamedTuple):
    """An active signal of a work item."""

    key: Key
    item: ItemKey
    signal: Signal | None
    """The signal without its history; None if its trigger is long and was not read."""


class SignalCommand(NamedTuple):
    """A command on a signal."""

    key: Key
    step: Step
    cause: Cause


def apply_command(signal: Signal | None, command: SignalCommand, now: int) -> tuple[Signal, Outcome]:
    """Apply a command to a signal at the command's position in the history."""
    known = signal or Signal(command.key, SignalState(), History(), now)
    history, step = known.history, command.step
    positions = {known_step.position for known_step in history.steps if known_step.verb not in _FIRING_VERBS}
    newest = max(positions, default=history.forgotten)
    if step.position == newest != UNKNOWN:
        return known, Outcome.UNCHANGED
    if step.position in positions or step.position <= history.forgotten:
        return known, Outcome.IGNORED_STALE
    older = tuple(known_step for known_step in history.steps if known_step.position < step.position)
    newer = history.steps[len(older) :]
    before = known.state if not newer else History(older, history.base).result()
    state, outcome = apply_step(before, step)
    for newer_step in newer:
        state, _ = apply_step(state, newer_step)
    changed = _with_steps(known, (*older, step, *newer), state, now)
    if step.position < newest and _is_overruled(known.state, changed.state, step):
        outcome = Outcome.IGNORED_STALE
    return changed, outcome


def _is_overruled(before: SignalState, after: SignalState, step: Step) -> bool:
    """Return whether newer commands hide every effect of a late command."""
    if step.verb is Verb.CREATE:
        return after.defined != step.position or not after.is_live
    return before._replace(since=UNKNOWN) == after._replace(since=UNKNOWN)


def fire(signal: Signal, cause: Position, at: int) -> Signal:
    """Return the new state of an active signal that fires because of a cause."""
    return _after_firing(signal, Verb.FIRE, cause, at)._replace(last_error=None)


def give_up(signal: Signal, cause: Position, error: str, at: int) -> Signal:
    """Return a signal after one of its firings was given up. An active signal is paused; others do not change."""
    if not signal.state.is_active:
        return signal
    return _after_firing(signal, Verb.GIVE_UP, cause, at)._replace(last_error=error)


def _after_firing(signal: Signal, verb: Verb, cause: Position, at: int) -> Signal:
    """Return a signal with the end of a firing as its newest step.

    The position of this step is the position of the cause or of the newest known step, whichever is newer.
    """
    steps = signal.history.steps
    newest = steps[-1].position if steps else signal.history.forgotten
    fired_at = at if verb is Verb.FIRE else None
    step = Step(max(newest, cause), verb, signal.state.definition, fired_at)
    state, _ = apply_step(signal.state, step)
    return _with_steps(signal, (*steps, step), state, at)


def _with_steps(signal: Signal, steps: tuple[Step, ...], after: SignalState, now: int) -> Signal:
    history = _shorten(History(steps, signal.history.base, signal.history.forgotten))
    before = signal.state
    created_again = after.defined != before.defined
    activated = after.is_active and not before.is_active
    return signal._replace(
        state=after,
        history=history,
        created_at=now if created_again else signal.created_at,
        last_error=None if created_again or activated else signal.last_error,
        unused_since=None if after.is_live else now,
    )


def _shorten(history: History) -> History:
    """Return a history within the limits. The oldest steps are merged into the base."""
    steps, base, forgotten = history
    while len(steps) > _MAX_STEPS or (len(steps) > 1 and _size(steps) > _MAX_HISTORY):
        base, _ = apply_step(base, steps[0])
        forgotten = max(forgotten, steps[0].position)
        steps = steps[1:]
    return History(steps, base, forgotten)


def _size(steps: Iterable[Step]) -> int:
    definitions = {step.definition for step in steps if step.definition is not None}
    return sum(definition.characters for definition in definitions)


def explain_end(before: Signal, after: Signal) -> str | None:
    """Return why the firings of `before` must not fire any longer, or None if they may."""
    if not before.state.is_live or (after.state.is_live and after.state.defined == before.state.defined):
        return None
    state, history = after.history.base, after.history
    for step in history.steps:
        state, _ = apply_step(state, step)
        if step.position > before.state.defined and state.status in ENDED:
            return f"the signal is {state.status}"
    return "the signal has another definition now"


def starts_waiting(before: Signal | None, after: Signal) -> bool:
    """Return whether a signal is active and its state has changed."""
    return after.state.is_active and (before is None or before.state != after.state)


def matches(signal: Signal, transition: Transition) -> bool:
    """Return whether a signal fires on a transition.

    The signal must be active, its trigger must match, and the transition must be newer than `since`.
    """
    state = signal.state
    if not state.is_active or state.definition is None or signal.item != transition.key:
        return False
    trigger = state.definition.trigger
    return (
        isinstance(trigger, StatusTransition)
        and state.since < transition.position
        and trigger.matches(transition.to_status)
    )
