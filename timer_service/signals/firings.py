"""Firings: values and decisions. Pure, but for a line in the log."""

import hashlib
import logging
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.instant import format_instant
from timer_service.core.message import Position
from timer_service.signals.items import Cause, Transition
from timer_service.signals.signals import Key, Signal, matches
from timer_service.signals.triggers import TimeAt

log = logging.getLogger(__name__)


class FiringStatus(StrEnum):
    """The status of a firing."""

    QUEUED = "queued"
    PROCESSING = "processing"
    ENQUEUED = "enqueued"
    FAILED = "failed"


class Firing(NamedTuple):
    """One cause that made one signal's trigger come true."""

    signal: Key
    defined: Position
    """The position of the CreateWorkSignal whose trigger came true."""
    dedupe_key: str
    work_item_id: str | None
    due_at: int
    position: Position
    """The position of its cause: of the transition, or of the CreateWorkSignal that names the instant."""
    cause: Cause
    failed: str | None = None
    """Why it must not fire, if that is known already."""

    @property
    def firing_id(self) -> str:
        """The same for the same signal, definition and cause, however often it is found."""
        epoch, sequence = self.defined
        cause = "\0".join((*self.signal, f"{epoch}-{sequence}", self.dedupe_key))
        return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()


def evaluate(event: Transition, signals: Iterable[Signal]) -> tuple[list[Firing], bool]:
    """Match a transition with signals; return the firings, and whether every signal could be matched.

    A signal that can't be matched is logged and passed over, so that it costs only itself.
    """
    found, complete = [], True
    for signal in signals:
        try:
            if matches(signal, event):
                found.append(firing_on(signal, event))
        except Exception:
            log.exception("signal can't be matched with a transition", extra={"signal_id": signal.key.signal_id})
            complete = False
    return found, complete


def firing_on(signal: Signal, event: Transition) -> Firing:
    """Return the firing of a signal on a transition it matches."""
    item, due_at = event.key.work_item_id, event.recorded_at
    return Firing(signal.key, signal.standing.defined, event.event_id, item, due_at, event.position, event.cause)


def firing_at(signal: Signal, cause: Cause) -> Firing | None:
    """Return the firing of a signal that waits for an instant, None for others."""
    definition, defined = signal.standing.definition, signal.standing.defined
    if definition is None or not isinstance(definition.trigger, TimeAt):
        return None
    # The dedupe key names the definition: a signal that has ended and is created again has another cause.
    dedupe_key = f"{format_instant(definition.trigger.at)}/{defined.epoch}-{defined.sequence}"
    return Firing(signal.key, defined, dedupe_key, definition.work_item_id, definition.trigger.at, defined, cause)


def refusal(signal: Signal | None, defined: Position, cause: Position) -> str | None:
    """Say why a signal must not fire now, by a definition and a cause of some positions; None if it may."""
    if signal is None:
        return "the signal does not exist any more"
    standing = signal.standing
    if not standing.waits or standing.definition is None:
        return "the signal does not exist any more" if standing.status is None else f"the signal is {standing.status}"
    if standing.defined != defined:
        return "the signal has another definition now"
    if cause <= standing.since and not standing.is_timed:
        return "the signal was activated after that"
    return None
