"""The events of schedules. The id of each follows from its cause, so a repeated event has the same id."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timer_service.core.events.cause import Cause, cause_of
from timer_service.core.service.workflow_start import WorkflowStart
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Command, Event
from timer_service.core.values.stored_json import RawJson, read_stored, write_object
from timer_service.schedules.backfills import Backfill
from timer_service.schedules.decision import Decision
from timer_service.schedules.messages import (
    BackfillEnd,
    FiringCause,
    ScheduleBackfilled,
    ScheduleEnded,
    ScheduleFired,
    ScheduleSkipped,
    SkipReason,
)
from timer_service.schedules.schedule import Key, Schedule

_NOTHING: Mapping[str, str] = {}


def fired_events(decision: Decision, data: str | None, now: int) -> list[Event]:
    """Return the events of the slots that fired, in order. Only the first names the slots that were skipped before."""
    schedule = decision.schedule
    events = []
    missed_since = decision.missed_since
    for slot in decision.fired:
        missed = {} if missed_since is None else {"missedSince": format_instant(missed_since)}
        payload = _fired(schedule.key, FiringCause.SLOT, slot, now, data=data, more=missed)
        events.append(_event(ScheduleFired.type, schedule.key, ("slot", slot), payload, cause=schedule.cause, at=now))
        missed_since = None
    return events


def backfill_events(backfill: Backfill, slots: Sequence[int], data: str | None, now: int) -> list[Event]:
    """Return the events of slots of a backfill, in order. Their ids are those that the slots always have."""
    key = backfill.schedule
    return [
        _event(
            *(ScheduleFired.type, key, ("slot", slot), _fired(key, FiringCause.BACKFILL, slot, now, data=data)),
            cause=backfill.cause,
            at=now,
        )
        for slot in slots
    ]


def backfilled_event(backfill: Backfill, end: BackfillEnd, now: int) -> Event:
    """Return the event of a backfill that has ended. Unless the schedule was deleted, it names the first slot left."""
    left = None if end is BackfillEnd.DELETED else backfill.first_left()
    following = {} if left is None else {"nextSlotAt": format_instant(left)}
    fields = {
        "commandId": backfill.cause.command_id,
        "from": format_instant(backfill.from_at),
        "to": format_instant(backfill.to_at),
        "count": backfill.fired_count,
        "skipped": backfill.skipped_count,
        "reason": end,
        **following,
    }
    payload = write_object({**_names(backfill.schedule), **fields}, {})
    about = ("backfilled", *backfill.key.position)
    return _event(ScheduleBackfilled.type, backfill.schedule, about, payload, cause=backfill.cause, at=now)


def trigger_event(schedule: Schedule, command: Command, data: str | None, now: int) -> Event:
    """Return the event of a TriggerSchedule with `data`. Its slot is the command time."""
    payload = _fired(schedule.key, FiringCause.TRIGGER, command.stored_at, now, data=data)
    about = ("trigger", *command.position)
    return _event(ScheduleFired.type, schedule.key, about, payload, cause=cause_of(command), at=now)


class Skipped(NamedTuple):
    """A slot or a trigger that started no workflow."""

    slot: int
    cause: FiringCause
    reason: SkipReason


def skipped_event(key: Key, skipped: Skipped, start: WorkflowStart, now: int) -> Event:
    """Return the event of a slot or a trigger that should have started a workflow.

    A slot can be backfilled again and again. Each time it is skipped, it has another event.
    """
    fields = {
        "slotAt": format_instant(skipped.slot),
        "skippedAt": format_instant(now),
        "cause": skipped.cause,
        "reason": skipped.reason,
        "workflowId": start.workflow_id,
    }
    payload = write_object({**_names(key), **fields}, {})
    about = ("skipped", start.workflow_id, *(start.position if skipped.cause is FiringCause.BACKFILL else ()))
    return _event(ScheduleSkipped.type, key, about, payload, cause=start.cause, at=now)


def ended_event(schedule: Schedule, now: int) -> Event:
    """Return the ScheduleEnded of a schedule whose status becomes `ended`."""
    payload = write_object({**_names(schedule.key), "reason": schedule.end_reason}, {})
    about = ("ended", *schedule.defined_by)
    return _event(ScheduleEnded.type, schedule.key, about, payload, cause=schedule.cause, at=now)


def _fired(
    key: Key, cause: FiringCause, slot: int, now: int, *, data: str | None, more: Mapping[str, str] = _NOTHING
) -> RawJson:
    fields = {"slotAt": format_instant(slot), "firedAt": format_instant(now), "cause": cause, **more}
    return write_object({**_names(key), **fields}, {"data": read_stored(data)})


def _event(message_type: str, key: Key, about: tuple[object, ...], payload: RawJson, *, cause: Cause, at: int) -> Event:
    event_id = hashlib.blake2b("\0".join((*key, *map(str, about))).encode(), digest_size=16).hexdigest()
    command_id, correlation_id, trace = cause
    return Event(event_id, message_type, key.tenant_id, payload, at, correlation_id, command_id, trace)


def _names(key: Key) -> dict[str, str]:
    return {"tenantId": key.tenant_id, "scheduleId": key.schedule_id}
