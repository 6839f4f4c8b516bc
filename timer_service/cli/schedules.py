"""`timer-service schedules`. These commands use the broker only, never the database."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from timer_service.cli import parameters
from timer_service.cli.connection import add_command
from timer_service.cli.output import format_distance, format_duration, format_time, print_value
from timer_service.cli.resources import Outcomes, Resource, Rows
from timer_service.client import (
    CalendarInterval,
    CalendarUnit,
    CatchUpPolicy,
    Outcome,
    Schedule,
    ScheduleStatus,
    TimerClient,
    WorkflowStart,
)

app = typer.Typer(help="Recurring timers: cron expressions and intervals.", no_args_is_help=True)

_UNITS: Mapping[str, CalendarUnit] = {"day": "days", "week": "weeks", "month": "months"}
_CALENDAR = re.compile(r"(\d{1,9}) (day|week|month)s? from (\S+T(?!24)\S+)", re.ASCII | re.IGNORECASE)
_MONTHS = re.compile(r"P\d+M|\d+ ?mo(nths?)?|P?\d+ ?y(ears?)?", re.ASCII | re.IGNORECASE)


def _read_calendar(text: str) -> CalendarInterval:
    """Return the calendar interval in the text of an option."""
    found = _CALENDAR.fullmatch(" ".join(text.split()))
    every, unit, anchor = found.groups() if found else ("", "", "")
    try:
        at = datetime.fromisoformat(anchor)
    except ValueError:
        at = datetime.min.replace(tzinfo=UTC)
    if at.tzinfo is not None or at.microsecond:
        must = "days, weeks or months (a year is 12), and the first slot as the clocks of --zone show it"
        raise typer.BadParameter(f"{text!r} must be {must}: '2 weeks from 2026-01-02T09:00'.")
    return CalendarInterval(every=int(every), unit=_UNITS[unit.lower()], anchor=at)


def _read_every(text: str) -> timedelta:
    """Return the distance in the text of an option."""
    try:
        return parameters.read_duration(text)
    except typer.BadParameter as error:
        instead = " Months have no fixed length: use --calendar." if _MONTHS.fullmatch(text) else ""
        raise typer.BadParameter(f"{error.message}{instead}") from error


NAME = parameters.identifier("SCHEDULE", "The id of the schedule.")
RECURRENCE = {
    "cron": parameters.option("EXPR", "A cron expression in quotes: '0 9 * * MON-FRI'."),
    "every": parameters.option("DURATION", f"The time between slots: {parameters.DURATION_FORMS}.", parser=_read_every),
    "calendar": parameters.option(
        "INTERVAL",
        "Days, weeks or months between slots, and the first one: '2 weeks from 2026-01-02T09:00'.",
        parser=_read_calendar,
    ),
    "zone": parameters.option("ZONE", "The time zone of --cron or --calendar, such as Europe/Berlin. Default: UTC."),
    "start_at": parameters.instant("No slot is earlier: ISO 8601 with an offset."),
    "end_at": parameters.instant("Every slot is earlier: ISO 8601 with an offset."),
}
START = {
    "workflow_type": parameters.option(
        "TYPE", "Each slot starts a workflow of this type, and publishes no event.", "--start"
    ),
    "start_input": parameters.json_option("The input of the workflows.", "--input"),
    "queue": parameters.option("QUEUE", "The queue of their workers. Default: default."),
    "deadline_in": parameters.duration("A workflow fails if it is slower."),
    **parameters.CONCURRENCY,
}


def slot_text(at: datetime, zone: str | None) -> str:
    """Return an instant in UTC and in a zone. If the zone is UTC or missing, the second one is this machine's zone."""
    utc = format_time(at, milliseconds=bool(at.microsecond))
    try:
        local = at.astimezone(None if zone in {None, "UTC"} else ZoneInfo(str(zone)))
    except (KeyError, ValueError, OSError, OverflowError):  # this machine does not know the zone; or the year 10000
        return utc
    return f"{utc}  {local:%a} {local.replace(tzinfo=None).isoformat(sep=' ', timespec='seconds')} {local:%Z}"


def recurrence_text(schedule: Schedule) -> str:
    """Return the recurrence of a schedule, such as `0 9 * * MON-FRI in Europe/Berlin`."""
    if schedule.every is not None:
        return f"every {format_duration(schedule.every)}"
    if schedule.calendar is not None:
        every, unit, anchor = schedule.calendar.document().values()
        return f"every {every} {unit} from {anchor} in {schedule.zone}"
    return f"{schedule.cron} in {schedule.zone}"


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


def print_schedule(schedule: Schedule) -> None:
    """Print a line for each field of a schedule, for each backfill, and for each of its next slots."""
    print_value(
        schedule,
        f"{schedule.tenant}/{schedule.schedule_id}",
        {"recurrence": recurrence_text(schedule)},
        leave_out=["schedule_id", "cron", "zone", "every", "calendar"],
        time_text=lambda at: slot_text(at, schedule.zone),
    )


def _row(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    at = schedule.next_slot_at
    next_slot = ("", "") if at is None else (format_time(at), format_distance(at, now))
    error = f" (error: {schedule.last_error})" if schedule.last_error else ""
    return schedule.schedule_id, schedule.status, *next_slot, recurrence_text(schedule) + error


LIST = Rows(
    query="list-schedules",
    field="schedules",
    view=Schedule,
    head=("SCHEDULE", "STATUS", "NEXT SLOT", "", "RECURRENCE"),
    row=_row,
    colours={"active": "green", "paused": "red"},
)
SCHEDULES = Resource(
    app,
    lambda client: client.schedules,
    Outcomes(
        lambda outcome: state_text(outcome.schedule),
        {"created", "updated", "paused", "resumed", "deleted", "triggered", "queued", "backfilling", "unchanged"},
        {
            "ended": "no slot is left, so it does not fire; give a later --end-at, or another --cron or --every",
            "backfilling": "an event ScheduleBackfilled follows",
            "nothing_due": "--from is in the future",
            "unchanged": "already in that state",
            "not_found": "there is no such schedule",
            "already_ended": "it has ended",
            "queued": "its workflow starts when it is its turn",
            "skipped_busy": "the concurrency key of its workflow is busy",
            "exists": "there is another workflow with the id of this trigger",
        },
    ),
)
_AFTER_PUT: Mapping[str | None, str] = {
    "paused": "it stays paused; `timer-service schedules resume` ends the pause",
    "ended": "it has ended and does not fire; delete it first to start it again",
}
"""What to know about a schedule with this status after a put."""
_AFTER_PAUSE = {
    "not_found": "there is no such schedule; if it is put later, it is paused",
    "already_ended": "it has ended; if it is started again, it is paused",
}


def _explain_put(outcome: Outcome) -> str | None:
    """Return what to know about the schedule after a put. The outcome `ended` has its own explanation."""
    return None if outcome.schedule is None or outcome.name == "ended" else _AFTER_PUT.get(outcome.schedule.status)


def _check_recurrence(
    *, cron: str | None, every: timedelta | None, calendar: CalendarInterval | None, zone: str | None, **_: object
) -> None:
    if [cron, every, calendar].count(None) != 2:  # noqa: PLR2004 - two of three
        raise typer.BadParameter("Give one of --cron, --every and --calendar.")
    if every is not None and zone is not None:
        text = "--zone needs --cron or --calendar: --every is elapsed time, which is equal in all zones."
        raise typer.BadParameter(text)


def _check_put(**given: Any) -> None:
    _check_recurrence(**given)
    if given["workflow_type"] is not None and given["data"] is not None:
        raise typer.BadParameter("--data cannot be combined with --start: use --input.")
    if given["workflow_type"] is not None and given["topic"] is not None:
        raise typer.BadParameter("--topic cannot be combined with --start: a slot that starts a workflow has no event.")
    if given["workflow_type"] is None and any(given[name] is not None for name in START):
        raise typer.BadParameter("--input, --queue, --deadline-in, --key, --limit and --when-busy need --start.")


async def _put(client: TimerClient, **given: Any) -> Outcome:
    """Put a schedule. The parameters in START become one value, in which --input is called `data`."""
    of_start = {name.replace("start_input", "data"): given.pop(name) for name in START if name in given}
    start = WorkflowStart(**of_start) if of_start else None
    return await client.schedules.put(**given, start=start)


async def _preview(client: TimerClient, *, as_json: bool, **given: Any) -> None:
    """Print the slots that a recurrence would have."""
    slots = await client.schedules.preview(**given)
    if as_json:
        typer.echo(json.dumps([format_time(slot, milliseconds=True) for slot in slots]))
        return
    for slot in slots:
        typer.echo(f"{slot_text(slot, given['zone'])}  {format_distance(slot, datetime.now(UTC))}")
    if not slots:
        typer.echo("no slots", err=True)


SCHEDULES.command(
    "put",
    "Create a schedule, or replace its whole definition. A paused schedule stays paused.\n\n"
    "With --start, each slot starts a workflow instead of publishing an event.",
    {
        "schedule_id": NAME,
        **RECURRENCE,
        "max_count": parameters.number("End after N slots."),
        "jitter": parameters.duration("Fire each slot up to so much later. Spreads many schedules."),
        "catch_up": parameters.choice(
            CatchUpPolicy,
            "After an outage, of the slots that are later than --late-by: fire the newest if all are that late (last, "
            "the default), none (skip) or all.",
        ),
        "late_by": parameters.duration("Slots that are at most so late fire. Default: 1m."),
        "catch_up_limit": parameters.number("Fire at most the newest N late slots. Default: 100."),
        "topic": parameters.topic("The last token of the events' subject. Default: no topic."),
        "data": parameters.json_option("JSON that the events return. Default: no data."),
        **START,
    },
    call=_put,
    check=_check_put,
    explain=_explain_put,
)
SCHEDULES.command(
    "pause",
    "Pause a schedule: no slot fires until it is resumed.",
    {"schedule_id": NAME},
    explain=lambda outcome: _AFTER_PAUSE.get(outcome.name),
    also_effective=_AFTER_PAUSE,
)
SCHEDULES.command("resume", "Resume a paused schedule. The slots of the pause do not fire.", {"schedule_id": NAME})
SCHEDULES.command(
    "trigger",
    "Fire a schedule once, now, also if it is paused or has ended.",
    {"schedule_id": NAME, "data": parameters.json_option("JSON instead of the data of the schedule.")},
)
SCHEDULES.command(
    "backfill",
    "Fire past slots of a schedule under their own ids, also if it is paused or has ended.",
    {
        "schedule_id": NAME,
        "from_at": parameters.instant("No slot is earlier: ISO 8601 with an offset.", "--from", wanted=str),
        "to_at": parameters.instant("Every slot is earlier. Slots are never later than now.", "--to", wanted=str),
        "limit": parameters.number("Fire at most the oldest N slots. Default: 1000."),
    },
)
SCHEDULES.command("delete", "Delete a schedule, and end its pause.", {"schedule_id": NAME})
SCHEDULES.get(
    "Show one schedule and its next slots.",
    print_schedule,
    {
        "schedule_id": NAME,
        "upcoming": (
            Annotated[int, typer.Option(min=0, max=100, metavar="N", help="How many of the next slots to show.")],
            3,
        ),
    },
)
SCHEDULES.list(
    LIST,
    "List schedules by status and id: those that have ended are the last.",
    {
        "status": parameters.choice(ScheduleStatus, "Only schedules in this status."),
        "topic": parameters.topic("Only schedules with this topic."),
    },
)
add_command(
    app,
    "preview",
    "Show the slots that a schedule would have. Nothing is stored.",
    _preview,
    {
        "tenant": parameters.Tenant,
        **RECURRENCE,
        "from_at": parameters.instant("Show slots from then on. Default: from now on.", "--from"),
        "count": (Annotated[int, typer.Option(min=1, max=100, metavar="N", help="How many slots to show.")], 10),
        "as_json": parameters.AsJson,
    },
    check=_check_recurrence,
)
SCHEDULES.watch(
    "Print the events of schedules that are published from now on.",
    {"schedule_id": parameters.identifier("SCHEDULE", "Only this schedule.", str | None)},
)
