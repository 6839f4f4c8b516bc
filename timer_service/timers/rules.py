"""The rules of timers: what each command does to a timer. Pure functions without I/O and without a clock."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.due.long_texts import LONGEST_IN_ROW
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position, Trace
from timer_service.timers.messages import CancelTimer, PlainTimer, ScheduleTimer, State, TimerPayload


class Outcome(StrEnum):
    """The outcome of a command on a timer."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    UPDATED = "updated"
    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    RETRIED = "retried"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_REACHED = "already_reached"
    ALREADY_EXPIRED = "already_expired"
    IGNORED_REACHED = "ignored_reached"
    OVER_QUOTA = OVER_QUOTA


class Key(NamedTuple):
    """The key of a timer."""

    tenant_id: str
    service_call_id: str


Requested = tuple[int, str, str | None, int | None, str | None]
"""The due time, the event id, the data, the expiry and the topic of a ScheduleTimer."""


class Schedule(NamedTuple):
    """The values of one ScheduleTimer command. Values of two commands are never mixed."""

    due_at: int
    event_id: str
    data: str | None = None
    expires_at: int | None = None
    """If the timer fires at this instant or later, it expires."""
    topic: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    trace: Trace = Trace()

    @property
    def large_data(self) -> int | None:
        """The number of characters of the data, which then count in the limit `stored_data`; None if they are few."""
        characters = len(self.data or "")
        return characters if characters > LONGEST_IN_ROW else None


class Timer(NamedTuple):
    """A timer."""

    key: Key
    state: State
    position: Position
    """Of the newest command that changed the timer, or scheduled it as it was. A CancelTimers spares newer timers."""
    registered_at: int
    schedule: Schedule
    available_at: int | None = None
    settled_at: int | None = None
    attempt: int = 0
    last_error: str | None = None

    @property
    def expired_at(self) -> int | None:
        """When the timer expired, or None if it has not expired."""
        return self.settled_at if self.state is State.EXPIRED else None

    @property
    def reached_at(self) -> int | None:
        """When the timer fired, or None if it has not fired."""
        return self.settled_at if self.state is State.REACHED else None


class Applied(NamedTuple):
    """The result of a command: the timer after it, or None if there is no timer, and the outcome."""

    timer: Timer | None
    outcome: Outcome


def key_of(command: Command) -> Key:
    """Return the key of the timer that a command names."""
    payload = command.payload
    if isinstance(payload, PlainTimer):  # most are
        return Key(payload[0], payload[1])
    assert isinstance(payload, TimerPayload)  # noqa: S101 - the route admits no other payload
    return Key(payload.tenant_id, payload.service_call_id)


def apply(timer: Timer | None, key: Key, command: Command, now: int) -> Applied:
    """Apply a command to the timer with `key`. contracts/outcomes.md has the outcomes."""
    match command.payload:
        case PlainTimer() | ScheduleTimer():
            return _schedule(timer, new_timer(key, command, now))
        case CancelTimer():
            return _cancel(timer, command.position, now)
        case _:
            return _retry(timer, command.position, now)


def new_timer(key: Key, command: Command, now: int) -> Timer:
    """Return the timer that a ScheduleTimer adds."""
    schedule = Schedule(*requested(key, command, now), command.correlation_id, command.id, command.trace)
    return Timer(key, State.SCHEDULED, command.position, now, schedule, available_at=schedule.due_at)


def requested(key: tuple[str, str], command: Command, now: int) -> Requested:
    """Return what a ScheduleTimer asks for: the first fields of its `Schedule`."""
    payload = command.payload
    if isinstance(payload, PlainTimer):
        due_at = due_time(command, payload, now)
        return due_at, event_id(key, due_at, command.position), payload.data, None, payload.topic
    assert isinstance(payload, ScheduleTimer)  # noqa: S101 - the caller passes no other command
    due_at = due_time(command, payload, now)
    data = dump_data(payload.data) if "data" in payload.model_fields_set else None
    expires_at = payload.expires_at if payload.late_by is None else due_at + payload.late_by
    return due_at, event_id(key, due_at, command.position), data, expires_at, payload.topic


def event_id(key: tuple[str, str], due_at: int, position: Position) -> str:
    """Return the event id of a schedule. It depends on the accepted command, so a repeated event has the same id."""
    (tenant_id, service_call_id), (epoch, sequence) = key, position
    cause = f"{tenant_id}\0{service_call_id}\0{due_at}\0{epoch}\0{sequence}"
    return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()


def due_time(command: Command, payload: PlainTimer | ScheduleTimer, now: int) -> int:
    """Return when a timer is due. `dueIn` counts from the command time.

    If the broker does not know this time, `dueIn` counts from `now`, so that the timer is not early.
    """
    if payload.due_at is not None:
        return payload.due_at
    assert payload.due_in is not None  # noqa: S101 - the model has one of both
    return (command.stored_at or now) + payload.due_in


def _schedule(timer: Timer | None, new: Timer) -> Applied:
    """Apply a ScheduleTimer. `new`: the timer as it would be if there was none before."""
    if timer is not None and timer.state is State.REACHED:
        return Applied(timer, Outcome.IGNORED_REACHED)
    if timer is None or timer.state is not State.SCHEDULED:
        return Applied(new, Outcome.SCHEDULED)
    if timer.schedule.due_at != new.schedule.due_at:
        return Applied(new._replace(registered_at=timer.registered_at), Outcome.RESCHEDULED)
    if _content(timer.schedule) != _content(new.schedule):
        return Applied(new._replace(registered_at=timer.registered_at), Outcome.UPDATED)
    return Applied(timer._replace(position=new.position), Outcome.UNCHANGED)


def _content(schedule: Schedule) -> tuple[object, ...]:
    """Return the values that make a ScheduleTimer with the same due time an update if they differ."""
    return schedule.data, schedule.topic, schedule.correlation_id, schedule.expires_at


def _cancel(timer: Timer | None, position: Position, now: int) -> Applied:
    """Cancel a Scheduled or Failed timer."""
    if timer is None:
        return Applied(None, Outcome.NOT_FOUND)
    if timer.state is State.REACHED:
        return Applied(timer, Outcome.ALREADY_REACHED)
    if timer.state is State.EXPIRED:
        return Applied(timer, Outcome.ALREADY_EXPIRED)
    if timer.state is State.CANCELLED:
        return Applied(timer, Outcome.UNCHANGED)
    cancelled = timer._replace(state=State.CANCELLED, position=position, available_at=None, settled_at=now)
    return Applied(cancelled, Outcome.CANCELLED)


def _retry(timer: Timer | None, position: Position, now: int) -> Applied:
    """Retry a Failed timer. It fires now, but never before its due time, and keeps its event id."""
    if timer is None:
        return Applied(None, Outcome.NOT_FOUND)
    if timer.state is State.REACHED:
        return Applied(timer, Outcome.ALREADY_REACHED)
    if timer.state is not State.FAILED:
        return Applied(timer, Outcome.UNCHANGED)
    retried = timer._replace(
        state=State.SCHEDULED,
        position=position,
        available_at=max(now, timer.schedule.due_at),
        attempt=0,
        last_error=None,
    )
    return Applied(retried, Outcome.RETRIED)
