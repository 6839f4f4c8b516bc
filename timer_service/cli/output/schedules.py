"""Schedules and their slots as text. Pure, but for the time zone of this machine."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from timer_service.cli.output.table import Table
from timer_service.cli.output.text import field_lines, format_distance, format_duration, format_time, one_line
from timer_service.client import Backfill, CatchUp, Schedule, ScheduleStart, ScheduleStatus
from timer_service.core.values.instant import format_instant, parse_instant

_HEAD = ("SCHEDULE", "STATUS", "NEXT SLOT", "", "RECURRENCE")
_COLOURS: Mapping[str, str] = {ScheduleStatus.ACTIVE: "green", ScheduleStatus.PAUSED: "red"}


def schedule_details(schedule: Schedule, now: datetime) -> Iterator[str]:
    """Return a line for each field of a schedule, and for each of its upcoming slots."""
    yield one_line(f"{schedule.tenant}/{schedule.name}")

    def text(at: datetime | None) -> str | None:
        return None if at is None else f"{_slot_text(at, schedule.zone)}  ({format_distance(at, now)})"

    yield from field_lines(
        {
            "status": schedule.status + (f": {schedule.end_reason}" if schedule.end_reason else ""),
            "recurrence": recurrence_text(schedule),
            "starts": text(schedule.start_at),
            "ends": text(schedule.end_at),
            "next slot": None if schedule.upcoming else text(schedule.next_slot_at),
            "last slot": text(schedule.last_slot_at),
            "fired at": _exact(schedule.last_fired_at),
            "slots fired": _fired_text(schedule),
            "missed since": text(schedule.missed_since),
            "last skipped": _skipped_text(schedule, text),
            "catch up": _catch_up_text(schedule.catch_up),
            "jitter": f"up to {format_duration(schedule.jitter)}" if schedule.jitter else None,
            "created": _exact(schedule.created_at),
            "ended": _exact(schedule.ended_at),
            "last error": schedule.last_error and f"{schedule.last_error} (tried again every minute)",
            "data": None if schedule.data is None else json.dumps(schedule.data),
            **_start_fields(schedule.start),
        }
    )
    if schedule.backfills:
        yield "backfills:"
        yield from (one_line(f"  {_backfill_text(each)}") for each in schedule.backfills)
    if schedule.upcoming:
        paused = schedule.status == ScheduleStatus.PAUSED
        yield "upcoming, if it is resumed:" if paused else "upcoming:"
        yield from (f"  {line}" for line in slot_lines(schedule.upcoming, schedule.zone, now))


def schedule_table(schedules: Sequence[Schedule], now: datetime, width: int | None) -> Iterator[str]:
    """Return schedules as the lines of a table."""
    rows = [_row(schedule, now) for schedule in schedules]
    return Table(_HEAD, rows, width, id_column=0, status_column=1, colours=_COLOURS).lines()


def slot_lines(slots: Sequence[datetime], zone: str | None, now: datetime) -> Iterator[str]:
    """Return a line for each slot: in UTC, in the zone, and its distance from now."""
    for slot in slots:
        yield f"{_slot_text(slot, zone)}  {format_distance(slot, now)}"


def state_text(schedule: Schedule, now: datetime) -> str:
    """Return the status of a schedule, and its next slot."""
    if schedule.next_slot_at is not None:
        slot = _slot_text(schedule.next_slot_at, schedule.zone)
        return f"{schedule.status}, next slot {slot}  {format_distance(schedule.next_slot_at, now)}"
    if schedule.last_error is not None:
        return f"{schedule.status}, but its next slot cannot fire: {schedule.last_error}"
    return f"{schedule.status}: {schedule.end_reason}" if schedule.end_reason else schedule.status


def recurrence_text(schedule: Schedule) -> str:
    """Return the recurrence of a schedule, such as `0 9 * * MON-FRI in Europe/Berlin`."""
    if schedule.every is not None:
        return f"every {format_duration(schedule.every)}"
    return f"{schedule.cron} in {schedule.zone}"


def schedule_event_line(event: Mapping[str, Any]) -> str:
    """Return an event of a schedule as a line."""
    payload = event["payload"]
    name = f"{payload['tenantId']}/{payload['scheduleId']}"
    if event["type"] == "ScheduleEnded":
        return one_line(f"{format_instant(event['timestampMs'])}  {name}  ended: {payload['reason']}")
    if event["type"] == "ScheduleBackfilled":
        skipped = f", {payload['skipped']} skipped" if payload["skipped"] else ""
        left = f"; the next slot is {payload['nextSlotAt']}" if "nextSlotAt" in payload else ""
        about = f"backfilled {payload['from']} to {payload['to']}: {payload['count']} slots{skipped}"
        return one_line(f"{format_instant(event['timestampMs'])}  {name}  {about} ({payload['reason']}{left})")
    if event["type"] == "ScheduleSkipped":
        about = f"{payload['cause']} {payload['slotAt']} skipped: {payload['reason']}"
        return one_line(f"{payload['skippedAt']}  {name}  {about}  {payload['workflowId']}")
    late = parse_instant(payload["firedAt"]) - parse_instant(payload["slotAt"])
    about = f"{payload['cause']} {payload['slotAt']} (+{late} ms)"
    missed = f"  missed since {payload['missedSince']}" if "missedSince" in payload else ""
    data = f"  {json.dumps(payload['data'])}" if "data" in payload else ""
    return one_line(f"{payload['firedAt']}  {name}  {about}{missed}{data}")


def _slot_text(at: datetime, zone: str | None) -> str:
    """Return an instant in UTC and in a zone. If the zone is UTC or missing, the second one is this machine's zone."""
    utc = format_time(at, milliseconds=bool(at.microsecond))
    try:
        local = at.astimezone(None if zone in {None, "UTC"} else ZoneInfo(str(zone)))
    except (KeyError, ValueError, OSError, OverflowError):  # this machine does not know the zone; or the year 10000
        return utc
    return f"{utc}  {local:%a} {local.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')} {local:%Z}"


def _backfill_text(backfill: Backfill) -> str:
    span = f"{format_time(backfill.from_at, milliseconds=True)} to {format_time(backfill.to_at, milliseconds=True)}"
    skipped = f", {backfill.skipped} skipped" if backfill.skipped else ""
    last = f"; all up to {format_time(backfill.last_slot_at, milliseconds=True)}" if backfill.last_slot_at else ""
    again = f"; again at {format_time(backfill.retry_at, milliseconds=True)}" if backfill.retry_at else ""
    error = f" (error: {backfill.last_error}{again})" if backfill.last_error else ""
    return f"{span}: {backfill.count} slots of at most {backfill.limit} fired{skipped}{last}{error}"


def _exact(at: datetime | None) -> str | None:
    return None if at is None else format_time(at, milliseconds=True)


def _row(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    at = schedule.next_slot_at
    slot = ("", "") if at is None else (format_time(at), format_distance(at, now))
    error = f" (error: {schedule.last_error})" if schedule.last_error else ""
    return schedule.name, schedule.status, *slot, recurrence_text(schedule) + error


def _fired_text(schedule: Schedule) -> str:
    return str(schedule.fired_count) + ("" if schedule.max_count is None else f" of {schedule.max_count}")


def _skipped_text(schedule: Schedule, text: Callable[[datetime | None], str | None]) -> str | None:
    skipped = text(schedule.last_skipped_at)
    return None if skipped is None else f"{skipped}: {schedule.last_skip_reason}"


def _start_fields(start: ScheduleStart | None) -> Mapping[str, str | None]:
    if start is None:
        return {}
    return {
        "workflow": f"{start.type} in the queue {start.queue}",
        "input": None if start.input is None else json.dumps(start.input),
        "deadline in": None if start.deadline_in is None else format_duration(start.deadline_in),
        "key": start.concurrency_key,
    }


def _catch_up_text(catch_up: CatchUp) -> str:
    in_time = f"slots up to {format_duration(catch_up.late_by)} late"
    texts = {"last": f"{in_time}, or else the newest slot", "skip": in_time, "all": "all late slots"}
    return f"{catch_up.policy}: {texts.get(catch_up.policy, in_time)}; at most {catch_up.limit}"
