"""What a command does to a timer. Pure: no I/O, no clock."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.message import Position, Trace


class State(StrEnum):
    """Where a timer stands."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


class Outcome(StrEnum):
    """How a command on a timer ends."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_REACHED = "already_reached"
    IGNORED_REACHED = "ignored_reached"
    IGNORED_STALE = "ignored_stale"


class Key(NamedTuple):
    """Which timer."""

    tenant_id: str
    service_call_id: str


class Schedule(NamedTuple):
    """What a ScheduleTimer asks for."""

    due_at: int
    event_id: str
    data: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    trace: Trace = Trace()


class Timer(NamedTuple):
    """A timer as the rules see it. Without a schedule it is the tombstone of one that was cancelled while unknown."""

    key: Key
    state: State
    position: Position
    registered_at: int
    schedule: Schedule | None
    available_at: int | None = None
    settled_at: int | None = None
    attempt: int = 0
    last_error: str | None = None


class Write(StrEnum):
    """What a decision writes."""

    NOTHING = "nothing"
    POSITION = "position"
    """That a newer command has confirmed the row; a claim on it goes on."""
    ALL = "all"
    """The whole row; ends any claim on it."""


class Decision(NamedTuple):
    """What becomes of a timer, and how much of that is to be written."""

    verdict: Outcome
    timer: Timer | None
    write: Write = Write.NOTHING


def schedule(timer: Timer | None, key: Key, wanted: Schedule, position: Position, now: int) -> Decision:
    """Decide a ScheduleTimer (the outcome table of docs/guarantees.md)."""
    if timer is None:
        return _put(Outcome.SCHEDULED, _scheduled(key, wanted, position, now))
    if timer.position > position:
        return Decision(Outcome.IGNORED_STALE, timer)
    if timer.state is State.REACHED:
        return Decision(Outcome.IGNORED_REACHED, timer)
    if timer.position == position:  # this very command, delivered again
        return Decision(Outcome.UNCHANGED, timer)
    if timer.state is not State.SCHEDULED or timer.schedule is None:
        return _put(Outcome.SCHEDULED, _scheduled(key, wanted, position, now))
    if timer.schedule.due_at == wanted.due_at:
        return _confirm(timer, position)
    return _put(Outcome.RESCHEDULED, _scheduled(key, wanted, position, timer.registered_at))


def cancel(timer: Timer | None, key: Key, position: Position, now: int) -> Decision:
    """Decide a CancelTimer. An unknown timer leaves a tombstone, or an older ScheduleTimer to come would win."""
    if timer is None:
        return _put(Outcome.NOT_FOUND, Timer(key, State.CANCELLED, position, now, None, settled_at=now))
    if timer.position > position:
        return Decision(Outcome.IGNORED_STALE, timer)
    if timer.state is State.REACHED:
        return Decision(Outcome.ALREADY_REACHED, timer)
    if timer.state is State.CANCELLED:
        return _confirm(timer, position)
    cancelled = timer._replace(state=State.CANCELLED, position=position, available_at=None, settled_at=now)
    return _put(Outcome.CANCELLED, cancelled)


def retry(timer: Timer | None, position: Position, now: int) -> Decision:
    """Decide a RetryTimer: only a Failed timer is put back, to fire at once under the id it always had."""
    if timer is None:
        return Decision(Outcome.NOT_FOUND, None)
    if timer.position > position:
        return Decision(Outcome.IGNORED_STALE, timer)
    if timer.schedule is None:
        return Decision(Outcome.NOT_FOUND, None)
    if timer.state is State.REACHED:
        return Decision(Outcome.ALREADY_REACHED, timer)
    if timer.state is not State.FAILED or timer.position == position:
        return _confirm(timer, position)
    back = timer._replace(
        state=State.SCHEDULED,
        position=position,
        available_at=max(now, timer.schedule.due_at),
        attempt=0,
        last_error=None,
    )
    return _put(Outcome.RETRIED, back)


def event_id(key: Key, due_at: int, position: Position) -> str:
    """Return the id of the event a schedule fires: one accepted command, one id, however often it is sent."""
    cause = "\0".join((*key, str(due_at), *map(str, position)))
    return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()


def _scheduled(key: Key, wanted: Schedule, position: Position, registered_at: int) -> Timer:
    return Timer(key, State.SCHEDULED, position, registered_at, wanted, available_at=wanted.due_at)


def _put(verdict: Outcome, timer: Timer) -> Decision:
    return Decision(verdict, timer, Write.ALL)


def _confirm(timer: Timer, position: Position) -> Decision:
    if timer.position == position:
        return Decision(Outcome.UNCHANGED, timer)
    return Decision(Outcome.UNCHANGED, timer._replace(position=position), Write.POSITION)
