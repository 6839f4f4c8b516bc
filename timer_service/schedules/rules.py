"""The rules of schedules: what each command does to a schedule. Pure functions without I/O and without a clock."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.cause import cause_of
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command, Position
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
from timer_service.schedules.schedule import NEVER, Definition, Key, Schedule, aim, cursor, start, tombstone


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
    SKIPPED_BUSY = "skipped_busy"
    EXISTS = "exists"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_ENDED = "already_ended"
    IGNORED_STALE = "ignored_stale"
    OVER_QUOTA = OVER_QUOTA


class Applied(NamedTuple):
    """The result of a command: the schedule or tombstone after it, and the outcome."""

    schedule: Schedule
    outcome: Outcome


def key_of(command: Command) -> Key:
    """Return the key of the schedule that a command names."""
    payload = command.payload
    assert isinstance(payload, SchedulePayload)  # noqa: S101 - the route admits no other payload
    return Key(payload.tenant_id, payload.schedule_id)


def apply(found: Schedule | None, key: Key, command: Command, now: int) -> Applied:
    """Apply a command to the schedule with `key`. docs/schedules.md has the table of outcomes."""
    before = found or tombstone(key, now)
    match command.payload:
        case TriggerSchedule():
            return Applied(before, Outcome.NOT_FOUND if before.definition is None else Outcome.TRIGGERED)
        case BackfillSchedule() as payload:
            return Applied(before, _backfill_outcome(before, command, payload))
        case PutSchedule() as payload:
            applied = _put(before, command, payload, now)
        case DeleteSchedule():
            applied = _delete(before, command.position, now)
        case payload:
            applied = _pause(before, command, now, pauses=isinstance(payload, PauseSchedule))
    return applied._replace(schedule=_confirm(before, applied.schedule, now))


def _backfill_outcome(before: Schedule, command: Command, payload: BackfillSchedule) -> Outcome:
    if command.position < before.deleted_by:
        return Outcome.IGNORED_STALE
    if before.definition is None:
        return Outcome.NOT_FOUND
    return Outcome.NOTHING_DUE if payload.from_ >= command.stored_at else Outcome.BACKFILLING


def _put(before: Schedule, command: Command, payload: PutSchedule, now: int) -> Applied:
    definition = _definition(payload)
    known = before.definition
    if command.position < before.defined_by:
        starts_again = known is not None and definition.slots != known.slots
        return Applied(_apply_late(before, command.position, now, starts_again=starts_again), Outcome.IGNORED_STALE)
    if command.position == before.defined_by:
        return Applied(before, Outcome.UNCHANGED)
    positioned = before._replace(defined_by=command.position, defined_at=command.stored_at)
    if definition == known:
        return Applied(positioned, Outcome.UNCHANGED)
    put = positioned._replace(definition=definition, cause=cause_of(command))
    if known is not None and definition.slots == known.slots:
        return Applied(aim(put, now), Outcome.UPDATED)
    if known is None:
        put = put._replace(created_at=now)
    started = start(put, now)
    if started.status is Status.ENDED:
        return Applied(started, Outcome.ENDED)
    return Applied(started, Outcome.CREATED if known is None else Outcome.UPDATED)


def _apply_late(before: Schedule, position: Position, now: int, *, starts_again: bool) -> Schedule:
    """Apply a Put or a Delete that is older than the definition.

    If it came between the start of the schedule and its definition, the definition starts the schedule again, as it
    would have done if the commands had been delivered in order.
    """
    if starts_again and before.started_by < position:
        return start(before, now)
    return before


def _delete(before: Schedule, position: Position, now: int) -> Applied:
    if position <= before.deleted_by:
        return Applied(before, Outcome.UNCHANGED if position == before.defined_by else Outcome.IGNORED_STALE)
    deleted = before._replace(deleted_by=position, is_paused=before.is_paused and before.paused_by > position)
    if position < before.defined_by:
        resumed = aim(deleted, now) if deleted.is_paused != before.is_paused else deleted
        return Applied(_apply_late(resumed, position, now, starts_again=True), Outcome.IGNORED_STALE)
    if before.definition is None:
        outcome = Outcome.NOT_FOUND if before.deleted_by == NEVER else Outcome.UNCHANGED
        return Applied(deleted._replace(defined_by=position), outcome)
    gone = tombstone(before.key, now)._replace(
        created_at=before.created_at,
        defined_by=position,
        deleted_by=position,
        paused_by=before.paused_by,
        is_paused=deleted.is_paused,
        after_at=before.after_at,
    )
    return Applied(gone, Outcome.DELETED)


def _pause(before: Schedule, command: Command, now: int, *, pauses: bool) -> Applied:
    if command.position < max(before.paused_by, before.deleted_by):
        return Applied(before, Outcome.IGNORED_STALE)
    after = before._replace(paused_by=command.position, is_paused=pauses)
    if before.is_paused and not pauses:
        after = after._replace(after_at=max(cursor(before, now), command.stored_at))
    if before.definition is None:
        return Applied(after, Outcome.NOT_FOUND)
    if before.status is Status.ENDED:
        return Applied(after, Outcome.ALREADY_ENDED)
    if before.is_paused == pauses:
        return Applied(after, Outcome.UNCHANGED)
    return Applied(aim(after, now), Outcome.PAUSED if pauses else Outcome.RESUMED)


def _confirm(before: Schedule, after: Schedule, now: int) -> Schedule:
    """Return the schedule after a command. If it has ended or is deleted, its retention time starts again.

    The row must outlast every older command that the broker still has.
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
    )


def _data(payload: PutSchedule) -> str | None:
    """Return the JSON of the data, or of the input of workflows."""
    if payload.start is not None:
        return None if payload.start.input is None else dump_data(payload.start.input)
    return dump_data(payload.data) if "data" in payload.model_fields_set else None
