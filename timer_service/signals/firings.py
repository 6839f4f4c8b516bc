"""Firings and the rules that create or refuse them. Pure functions, except for one log message."""

import hashlib
import logging
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Position
from timer_service.signals.signal import Key, Signal, Transition, matches
from timer_service.signals.triggers import TimeAt

log = logging.getLogger(__name__)


class FiringStatus(StrEnum):
    """The status of a firing."""

    QUEUED = "queued"
    ENQUEUED = "enqueued"
    FAILED = "failed"


class Firing(NamedTuple):
    """One cause that made the trigger of one signal true."""

    signal: Key
    defined: Position
    """The position of the CreateWorkSignal with the trigger."""
    dedupe_key: str
    work_item_id: str | None
    due_at: int
    position: Position
    """The position of the cause: the transition, or the CreateWorkSignal with the instant."""
    cause: Cause

    @property
    def firing_id(self) -> str:
        """The id. It depends only on the signal, the definition and the cause."""
        epoch, sequence = self.defined
        cause = "\0".join((*self.signal, f"{epoch}-{sequence}", self.dedupe_key))
        return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()


def evaluate(transition: Transition, signals: Iterable[Signal]) -> list[Firing]:
    """Match a transition with signals, and return the firings.

    A signal whose trigger raises an error is logged and skipped. The other signals are still evaluated.
    """
    found = []
    for signal in signals:
        try:
            if matches(signal, transition):
                found.append(transition_firing(signal, transition))
        except Exception:
            about = {"tenant": signal.key.tenant_id, "signal_id": signal.key.signal_id}
            log.exception("signal skipped: its trigger cannot be evaluated", extra=about)
    return found


def transition_firing(signal: Signal, transition: Transition) -> Firing:
    """Return the firing of a signal that matches a transition."""
    return Firing(
        signal=signal.key,
        defined=signal.defined,
        dedupe_key=transition.event_id,
        work_item_id=transition.key.work_item_id,
        due_at=transition.recorded_at,
        position=transition.position,
        cause=transition.cause,
    )


def time_firing(signal: Signal, cause: Cause) -> Firing | None:
    """Return the firing of a signal that waits for an instant, or None if the signal has another trigger."""
    trigger, defined = signal.definition.trigger, signal.defined
    if not isinstance(trigger, TimeAt):
        return None
    return Firing(
        signal=signal.key,
        defined=defined,
        # With the position of the definition: a signal that is created again for the same instant fires again.
        dedupe_key=f"{format_instant(trigger.at)}/{defined.epoch}-{defined.sequence}",
        work_item_id=signal.definition.work_item_id,
        due_at=trigger.at,
        position=defined,
        cause=cause,
    )


def refusal(signal: Signal, defined: Position, cause: Position) -> str | None:
    """Return why a firing must not fire now, or None if it may.

    `defined` is the position of the command that defined the signal, `cause` the position of the cause.
    """
    if not signal.is_active:
        return f"the signal is {signal.status}"
    if signal.defined != defined:
        return "the signal now has another definition"
    if cause <= signal.since and not signal.is_timed:  # an instant that has passed in a pause still counts
        return "the signal was activated after the cause"
    return None
