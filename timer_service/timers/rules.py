"""What a command does to a timer. Pure: no I/O, no clock."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.message import Position, Trace


class State(StrEnum):
    """Where a timer stands (the source document's names)."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


class Verdict(StrEnum):
    """How a command on a timer ends."""

    SCHEDULED = "scheduled"
    RESCHEDULED = "rescheduled"
    UNCHANGED = "unchanged"
    IGNORED_REACHED = "ignored_reached"
    IGNORED_STALE = "ignored_stale"


class Key(NamedTuple):
    """Which timer."""

    tenant_id: str
    service_call_id: str


class Schedule(NamedTuple):
    """What a ScheduleTimer asks for."""

    key: Key
    due_at: int
    position: Position
    data: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    trace: Trace = Trace()


class Timer(NamedTuple):
    """A timer as the rules see it."""

    schedule: Schedule
    state: State
    position: Position
    registered_at: int
    event_id: str


class Decision(NamedTuple):
    """What becomes of the timer; `timer` is None when it stays just as it is."""

    verdict: Verdict
    timer: Timer | None


def schedule(timer: Timer | None, wanted: Schedule, now: int) -> Decision:
    """Decide a ScheduleTimer (the outcome table of docs/guarantees.md)."""
    if timer is None:
        return Decision(Verdict.SCHEDULED, _scheduled(wanted, now))
    if timer.position > wanted.position:
        return Decision(Verdict.IGNORED_STALE, None)
    if timer.state is State.REACHED:
        return Decision(Verdict.IGNORED_REACHED, None)
    if timer.position == wanted.position:  # this very command, delivered again
        return Decision(Verdict.UNCHANGED, None)
    if timer.state is not State.SCHEDULED:
        return Decision(Verdict.SCHEDULED, _scheduled(wanted, now))
    if timer.schedule.due_at == wanted.due_at:
        return Decision(Verdict.UNCHANGED, timer._replace(position=wanted.position))
    return Decision(Verdict.RESCHEDULED, _scheduled(wanted, timer.registered_at))


def _scheduled(wanted: Schedule, registered_at: int) -> Timer:
    return Timer(
        schedule=wanted,
        state=State.SCHEDULED,
        position=wanted.position,
        registered_at=registered_at,
        event_id=event_id(wanted),
    )


def event_id(wanted: Schedule) -> str:
    """Return the id of the event this schedule fires: one accepted command, one id, however often it is sent."""
    cause = "\0".join((*wanted.key, str(wanted.due_at), *map(str, wanted.position)))
    return hashlib.blake2b(cause.encode(), digest_size=16).hexdigest()
