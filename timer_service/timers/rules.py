"""What a command does to a timer. Pure: no I/O, no clock."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.data import dump_data
from timer_service.core.message import Command, Position, Trace
from timer_service.timers.messages import CancelTimer, ScheduleTimer, TimerPayload


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
    UPDATED = "updated"
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
    """What a ScheduleTimer asks for. All of it comes from one command."""

    due_at: int
    event_id: str
    data: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    trace: Trace = Trace()


class Timer(NamedTuple):
    """A timer. One without a schedule is a tombstone: it was cancelled before its ScheduleTimer was handled."""

    key: Key
    state: State
    position: Position
    registered_at: int
    schedule: Schedule | None
    available_at: int | None = None
    settled_at: int | None = None
    confirmed_at: int | None = None
    """When the newest command was handled that found the timer settled already. Retention counts from then."""
    attempt: int = 0
    last_error: str | None = None


class Applied(NamedTuple):
    """The timer that a command leaves, or None if there is none, and how the command ended."""

    timer: Timer | None
    outcome: Outcome


def key_of(command: Command) -> Key:
    """Return the key of the timer that a command is about."""
    payload = command.payload
    assert isinstance(payload, TimerPayload)  # noqa: S101 - the route says so
    return Key(payload.tenant_id, payload.service_call_id)


def apply(timer: Timer | None, key: Key, command: Command, now: int) -> Applied:
    """Apply a command to the timer under its key (the outcome table of docs/guarantees.md)."""
    schedules = isinstance(command.payload, ScheduleTimer)
    if timer is not None and timer.position > command.position:
        return Applied(timer, Outcome.IGNORED_STALE)
    if timer is not None and timer.state is State.REACHED:
        outcome = Outcome.IGNORED_REACHED if schedules else Outcome.ALREADY_REACHED
        return Applied(_confirm(timer, command.position, now), outcome)
    if timer is not None and timer.position == command.position:  # this command was delivered again
        return Applied(timer, Outcome.UNCHANGED)
    match command.payload:
        case ScheduleTimer() as payload:
            return _schedule(timer, key, _wanted(key, command, payload), command.position, now)
        case CancelTimer():
            return _cancel(timer, key, command.position, now)
        case _:
            return _retry(timer, command.position, now)


def event_id(key: Key, due_at: int, position: Position) -> str:
    """Return the id of the event a schedule fires: one accepted command, one id, however often it is sent."""
    cause = "\0".join((*key, str(due_at), *map(str, position)))
    return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()


def _wanted(key: Key, command: Command, payload: ScheduleTimer) -> Schedule:
    return Schedule(
        due_at=payload.due_at,
        event_id=event_id(key, payload.due_at, command.position),
        data=dump_data(payload.data) if "data" in payload.model_fields_set else None,
        correlation_id=command.correlation_id,
        causation_id=command.id,
        trace=command.trace,
    )


def _schedule(timer: Timer | None, key: Key, wanted: Schedule, position: Position, now: int) -> Applied:
    if timer is None or timer.schedule is None or timer.state is not State.SCHEDULED:
        return Applied(_scheduled(key, wanted, position, now), Outcome.SCHEDULED)
    if timer.schedule.due_at != wanted.due_at:
        return Applied(_scheduled(key, wanted, position, timer.registered_at), Outcome.RESCHEDULED)
    if (timer.schedule.data, timer.schedule.correlation_id) != (wanted.data, wanted.correlation_id):
        return Applied(_scheduled(key, wanted, position, timer.registered_at), Outcome.UPDATED)
    return Applied(_confirm(timer, position, now), Outcome.UNCHANGED)


def _cancel(timer: Timer | None, key: Key, position: Position, now: int) -> Applied:
    """Cancel a timer. An unknown one leaves a tombstone, or an older ScheduleTimer delivered later would win."""
    if timer is None:
        return Applied(Timer(key, State.CANCELLED, position, now, None, settled_at=now), Outcome.NOT_FOUND)
    if timer.state is State.CANCELLED:
        return Applied(_confirm(timer, position, now), Outcome.UNCHANGED)
    cancelled = timer._replace(state=State.CANCELLED, position=position, available_at=None, settled_at=now)
    return Applied(cancelled, Outcome.CANCELLED)


def _retry(timer: Timer | None, position: Position, now: int) -> Applied:
    """Retry a Failed timer: it fires at once, never early, under the event id it always had."""
    if timer is None or timer.schedule is None:
        return Applied(timer, Outcome.NOT_FOUND)
    if timer.state is not State.FAILED:
        return Applied(_confirm(timer, position, now), Outcome.UNCHANGED)
    retried = timer._replace(
        state=State.SCHEDULED,
        position=position,
        available_at=max(now, timer.schedule.due_at),
        attempt=0,
        last_error=None,
    )
    return Applied(retried, Outcome.RETRIED)


def _scheduled(key: Key, wanted: Schedule, position: Position, registered_at: int) -> Timer:
    return Timer(key, State.SCHEDULED, position, registered_at, wanted, available_at=wanted.due_at)


def _confirm(timer: Timer, position: Position, now: int) -> Timer:
    """Return the timer with a command's position, so that older commands delivered later are stale.

    Retention of a settled timer starts again: it has to outlast every older command that the broker still holds.
    """
    if timer.position == position:
        return timer
    return timer._replace(position=position, confirmed_at=None if timer.settled_at is None else now)
