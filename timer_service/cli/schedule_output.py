"""Schedules, their slots and their events as text."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import typer

from timer_service.cli.output import fields_of, format_distance, format_duration, format_time, one_line, print_fields
from timer_service.client import Backfill, CatchUp, Schedule, ScheduleStart, ScheduleStatus
from timer_service.core.values.instant import format_instant, parse_instant

_IN_WORDS = (
    *("name", "cron", "zone", "every", "max_count", "fired_count", "catch_up", "jitter", "last_skip_reason"),
    *("end_reason", "upcoming", "backfills", "start"),
)
"""The fields that `print_schedule` does not print one by one."""


def print_schedule(schedule: Schedule) -> None:
    """Print a line for each field of a schedule, and for each of its upcoming slots."""
    now = datetime.now(UTC)
    fields = fields_of(schedule, now, leave_out=_IN_WORDS, time_text=lambda at: slot_text(at, schedule.zone))
    skipped = fields.get("last skipped at")
    typer.echo(one_line(f"{schedule.tenant}/{schedule.name}"))
    print_fields(
        {
            "status": fields.pop("status") + (f": {schedule.end_reason}" if schedule.end_reason else ""),
            "recurrence": recurrence_text(schedule),
            **fields,
            "slots fired": f"{schedule.fired_count}" + (f" of {schedule.max_count}" if schedule.max_count else ""),
            "last skipped at": skipped and f"{skipped}: {schedule.last_skip_reason}",
            "catch up": _catch_up_text(schedule.catch_up),
            "jitter": f"up to {format_duration(schedule.jitter)}" if schedule.jitter else None,
            **_start_fields(schedule.start, now),
        }
    )
    if schedule.backfills:
        typer.echo("backfills:")
        for backfill in schedule.backfills:
            typer.echo(one_line(f"  {_backfill_text(backfill)}"))
    if schedule.upcoming:
        paused = schedule.status == ScheduleStatus.PAUSED
        typer.echo("upcoming, if it is resumed:" if paused else "upcoming:")
        for slot in schedule.upcoming:
            typer.echo(f"  {slot_text(slot, schedule.zone)}  {format_distance(slot, now)}")


def state_text(schedule: Schedule | None) -> str:
    """Return the status of a schedule, and its next slot."""
    if schedule is None:
        return ""
    if schedule.next_slot_at is not None:
        slot = slot_text(schedule.next_slot_at, schedule.zone)
        return f"{schedule.status}, next slot {slot}  {format_distance(schedule.next_slot_at, datetime.now(UTC))}"
    if schedule.last_error is not None:
        return f"{schedule.status}, but its next slot cannot fire: {schedule.last_error}"
    return f"{schedule.status}: {schedule.end_reason}" if schedule.end_reason else schedule.status


def recurrence_text(schedule: Schedule) -> str:
    """Return the recurrence of a schedule, such as `0 9 * * MON-FRI in Europe/Berlin`."""
    if schedule.every is not None:
        return f"every {format_duration(schedule.every)}"
    return f"{schedule.cron} in {schedule.zone}"


def slot_text(at: datetime, zone: str | None) -> str:
    """Return an instant in UTC and in a zone. If the zone is UTC or missing, the second one is this machine's zone."""
    utc = format_time(at, milliseconds=bool(at.microsecond))
    try:
        local = at.astimezone(None if zone in {None, "UTC"} else ZoneInfo(str(zone)))
    except (KeyError, ValueError, OSError, OverflowError):  # this machine does not know the zone; or the year 10000
        return utc
    return f"{utc}  {local:%a} {local.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')} {local:%Z}"


def schedule_event_line(event: Mapping[str, Any]) -> str:
    """Return an event of a schedule as a line."""
    payload = event["payload"]
    match event["type"]:
        case "ScheduleEnded":
            at, about = format_instant(event["timestampMs"]), f"ended: {payload['reason']}"
        case "ScheduleBackfilled":
            skipped = f", {payload['skipped']} skipped" if payload["skipped"] else ""
            left = f"; the next slot is {payload['nextSlotAt']}" if "nextSlotAt" in payload else ""
            about = f"backfilled {payload['from']} to {payload['to']}: {payload['count']} slots{skipped}"
            at, about = format_instant(event["timestampMs"]), f"{about} ({payload['reason']}{left})"
        case "ScheduleSkipped":
            about = f"{payload['cause']} {payload['slotAt']} skipped: {payload['reason']}  {payload['workflowId']}"
            at = payload["skippedAt"]
        case _:
            late = parse_instant(payload["firedAt"]) - parse_instant(payload["slotAt"])
            missed = f"  missed since {payload['missedSince']}" if "missedSince" in payload else ""
            data = f"  {json.dumps(payload['data'])}" if "data" in payload else ""
            at, about = payload["firedAt"], f"{payload['cause']} {payload['slotAt']} (+{late} ms){missed}{data}"
    return one_line(f"{at}  {payload['tenantId']}/{payload['scheduleId']}  {about}")


def _backfill_text(backfill: Backfill) -> str:
    span = f"{format_time(backfill.from_at, milliseconds=True)} to {format_time(backfill.to_at, milliseconds=True)}"
    skipped = f", {backfill.skipped} skipped" if backfill.skipped else ""
    last = f"; all up to {format_time(backfill.last_slot_at, milliseconds=True)}" if backfill.last_slot_at else ""
    again = f"; again at {format_time(backfill.retry_at, milliseconds=True)}" if backfill.retry_at else ""
    error = f" (error: {backfill.last_error}{again})" if backfill.last_error else ""
    return f"{span}: {backfill.count} slots of at most {backfill.limit} fired{skipped}{last}{error}"


def _start_fields(start: ScheduleStart | None, now: datetime) -> Mapping[str, str | None]:
    if start is None:
        return {}
    fields = fields_of(start, now, leave_out=["type", "queue", "retry"])
    return {"workflow": f"{start.type} in the queue {start.queue}", **fields}


def _catch_up_text(catch_up: CatchUp) -> str:
    in_time = f"slots up to {format_duration(catch_up.late_by)} late"
    texts = {"last": f"{in_time}, or else the newest slot", "skip": in_time, "all": "all late slots"}
    return f"{catch_up.policy}: {texts.get(catch_up.policy, in_time)}; at most {catch_up.limit}"
