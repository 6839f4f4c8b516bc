"""The events of the ends of schedules and backfills, and the ids of all events. `firings` has those of slots.

The id of each follows from its cause, so a repeated event has the same id.
"""

import hashlib

from timer_service.core.events.cause import Cause
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import RawJson, write_object
from timer_service.schedules.backfills import Backfill
from timer_service.schedules.messages import BackfillEnd, ScheduleBackfilled, ScheduleEnded
from timer_service.schedules.schedule import Key, Schedule


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
    payload = write_object({**names(backfill.schedule), **fields}, {})
    about = ("backfilled", *backfill.key.position)
    return event_of(ScheduleBackfilled.type, backfill.schedule, about, payload, origin=backfill.cause, at=now)


def ended_event(schedule: Schedule, now: int) -> Event:
    """Return the ScheduleEnded of a schedule whose status becomes `ended`."""
    payload = write_object({**names(schedule.key), "reason": schedule.end_reason}, {})
    about = ("ended", *schedule.defined_by)
    return event_of(ScheduleEnded.type, schedule.key, about, payload, origin=schedule.cause, at=now)


def event_of(
    message_type: str,
    key: Key,
    about: tuple[object, ...],
    payload: RawJson,
    *,
    origin: Cause,
    at: int,
    topic: str | None = None,
) -> Event:
    """Return an event of a schedule. Its id follows from the key and from `about`."""
    event_id = hashlib.blake2b("\0".join((*key, *map(str, about))).encode(), digest_size=16).hexdigest()
    command_id, correlation_id, trace = origin
    return Event(event_id, message_type, key.tenant_id, payload, at, correlation_id, command_id, trace, topic)


def names(key: Key) -> dict[str, str]:
    """Return the fields that name a schedule in a payload."""
    return {"tenantId": key.tenant_id, "scheduleId": key.schedule_id}
