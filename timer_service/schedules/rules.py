"""The rules of schedules: what each command does to a schedule. Pure functions without I/O and without a clock."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.cause import cause_of
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.recurrence import next_slot
from timer_service.schedules.messages import (
    BackfillSchedule,
    CatchUp,
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    SchedulePayload,
    Status,
    TriggerSchedule,
)
from timer_service.schedules.schedule import (
    NEVER,
    Definition,
    Key,
    Schedule,
    aim,
    begun_slot,
    cursor,
    has_old_rules,
    start,
    tombstone,
)


class Outcome(StrEnum):
    """The outcome of a command on a schedule."""

    CREATED = "created"
    UPDATED = "updated"
    ENDED = "ended"
    PAUSED = "paused"
    RESUMED = "resumed"
    DELETED = "deleted"
    TRIGGERED = "triggered"
    BACKFILLING = "backfilling"
    NOTHING_DUE = "nothing_due"
    QUEUED = "queued"
    SKIPPED_BUSY = "skipped_busy"
    EXISTS = "exists"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_ENDED = "already_ended"
    OVER_QUOTA = OVER_QUOTA


class Applied(NamedTuple):
    """The result of a command: the schedule or tombstone after it, and the outcome."""

    schedule: Schedule
    outcome: Outcome

    def ends(self, before: Schedule) -> bool:
        """Return whether the schedule ends with the command, also if a Put starts it again without a slot."""
        is_ended = self.schedule.status is Status.ENDED
        return is_ended and (before.status is not Status.ENDED or self.outcome is Outcome.ENDED)


def key_of(command: Command) -> Key:
    """Return the key of the schedule that a command names."""
    payload = command.payload
    assert isinstance(payload, SchedulePayload)  # noqa: S101 - the route admits no other payload
    return Key(payload.tenant_id, payload.schedule_id)


def apply(before: Schedule, command: Command, now: int) -> Applied:
    """Apply a command to a schedule or a tombstone. contracts/outcomes.md has the outcomes."""
    match command.payload:
        case TriggerSchedule():
            return Applied(before, Outcome.NOT_FOUND if before.definition is None else Outcome.TRIGGERED)
        case BackfillSchedule() as payload:
            return Applied(before, _backfill_outcome(before, command, payload))
        case PutSchedule() as payload:
            applied = _put(before, command, payload, now)
        case DeleteSchedule():
            applied = _delete(before, now)
        case payload:  # PauseSchedule or ResumeSchedule
            applied = _pause(before, command, now, pauses=isinstance(payload, PauseSchedule))
    return applied._replace(schedule=_confirm(before, applied.schedule, now))


def _backfill_outcome(before: Schedule, command: Command, payload: BackfillSchedule) -> Outcome:
    """Return the outcome of a BackfillSchedule. Only slots before its command time can fire."""
    if before.definition is None:
        return Outcome.NOT_FOUND
    return Outcome.NOTHING_DUE if payload.from_ >= command.stored_at else Outcome.BACKFILLING


def _put(before: Schedule, command: Command, payload: PutSchedule, now: int) -> Applied:
    """Apply a PutSchedule. If it changes the recurrence or `maxCount`, the schedule starts, with its count at 0."""
    definition = _definition(payload)
    known = before.definition
    named = before._replace(defined_by=command.position)
    if definition == known:
        return Applied(_with_own_rules(named, now), Outcome.UNCHANGED)
    put = named._replace(definition=definition, cause=cause_of(command))
    if known is not None and (definition.recurrence, definition.max_count) == (known.recurrence, known.max_count):
        return Applied(aim(put, now), Outcome.UPDATED)
    if known is None:
        put = put._replace(created_at=now, created_by=command.position)
    started = start(put, command.stored_at, now, _begun_in_both(before, definition, command.stored_at))
    if started.status is Status.ENDED:
        return Applied(started, Outcome.ENDED)
    return Applied(started, Outcome.CREATED if known is None else Outcome.UPDATED)


def _with_own_rules(schedule: Schedule, now: int) -> Schedule:
    """Return a schedule with its next slot by the rules of its zone that this instance has."""
    try:
        return aim(schedule, now) if has_old_rules(schedule) else schedule
    except RecurrenceError:  # this instance does not know the zone; another one may
        return schedule


def _begun_in_both(before: Schedule, definition: Definition, at: int) -> int | None:
    """Return the slot that has begun and is not due at `at`, if a new definition has it too."""
    begun = begun_slot(before, at)
    if begun is None:
        return None
    try:
        return begun if next_slot(definition.recurrence, begun - 1) == begun else None
    except RecurrenceError:
        return None


def _delete(before: Schedule, now: int) -> Applied:
    """Return a tombstone that keeps the cursor, so that no old slot fires again. The pause of the id ends."""
    if before.definition is None:
        outcome = Outcome.NOT_FOUND if before.created_by == NEVER else Outcome.UNCHANGED
        return Applied(before._replace(is_paused=False), outcome)
    gone = tombstone(before.key, now)._replace(
        created_at=before.created_at, created_by=before.created_by, after_at=before.after_at
    )
    return Applied(gone, Outcome.DELETED)


def _pause(before: Schedule, command: Command, now: int, *, pauses: bool) -> Applied:
    """Apply a PauseSchedule or a ResumeSchedule. A tombstone keeps it for a later Put."""
    after = before._replace(is_paused=pauses)
    if before.is_paused and not pauses:  # the slots that were due in the pause never fire
        begun = begun_slot(before, command.stored_at)
        after_at = max(cursor(before, now), command.stored_at) if begun is None else begun - 1
        is_ahead = after_at < before.after_at
        after = after._replace(after_at=after_at, after_wall_at=None if is_ahead else before.after_wall_at)
    if before.definition is None:
        return Applied(after, Outcome.NOT_FOUND)
    if before.status is Status.ENDED:
        return Applied(after, Outcome.ALREADY_ENDED)
    if before.is_paused == pauses:
        return Applied(after, Outcome.UNCHANGED)
    return Applied(aim(after, now), Outcome.PAUSED if pauses else Outcome.RESUMED)


def _confirm(before: Schedule, after: Schedule, now: int) -> Schedule:
    """Return the schedule after a command. If it has ended or is deleted, its retention time starts again.

    So a Put that repeats the definition from time to time does not start an ended schedule again.
    """
    return after if after == before else after._replace(confirmed_at=None if after.ended_at is None else now)


def _definition(payload: PutSchedule) -> Definition:
    catch_up = payload.catch_up or CatchUp()
    return Definition(
        recurrence=payload.recurrence,
        max_count=payload.max_count,
        jitter_ms=payload.jitter or 0,
        policy=catch_up.policy,
        late_by_ms=catch_up.late_by,
        limit=catch_up.limit,
        data=_data(payload),
        start=None if payload.start is None else payload.start.spec,
        topic=payload.topic,
    )


def _data(payload: PutSchedule) -> str | None:
    """Return the JSON of the data, or of the input of workflows."""
    if payload.start is not None:
        return None if payload.start.input is None else dump_data(payload.start.input)
    return dump_data(payload.data) if "data" in payload.model_fields_set else None
