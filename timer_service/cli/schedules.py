"""`timer-service schedules`. These commands use the broker only, never the database."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output import format_distance, format_time
from timer_service.cli.parameters import AsJson, Tenant, TenantOrAll, json_argument
from timer_service.cli.resources import Outcomes, Rows, get_command, list_command, outcome_command, watch_command
from timer_service.cli.schedule_options import (
    BackfillFrom,
    BackfillLimit,
    BackfillTo,
    CatchUpLimit,
    Count,
    Cron,
    Data,
    EndAt,
    Every,
    FromTime,
    Jitter,
    LateBy,
    MaxCount,
    Name,
    OnlyName,
    Policy,
    Start,
    StartAt,
    StartDeadline,
    StartInput,
    StartKey,
    StartQueue,
    StatusFilter,
    TriggerData,
    Upcoming,
    Zone,
    start_of,
)
from timer_service.cli.schedule_output import (
    print_schedule,
    recurrence_text,
    schedule_event_line,
    slot_text,
    state_text,
)
from timer_service.client import Outcome, Schedule, ScheduleStatus, TimerClient

app = typer.Typer(help="Recurring timers: cron expressions and fixed intervals.", no_args_is_help=True)


def _row(schedule: Schedule, now: datetime) -> tuple[str, ...]:
    at = schedule.next_slot_at
    slot = ("", "") if at is None else (format_time(at), format_distance(at, now))
    error = f" (error: {schedule.last_error})" if schedule.last_error else ""
    return schedule.name, schedule.status, *slot, recurrence_text(schedule) + error


SCHEDULES = Rows(
    query="list-schedules",
    field="schedules",
    view=Schedule,
    head=("SCHEDULE", "STATUS", "NEXT SLOT", "", "RECURRENCE"),
    row=_row,
    colours={"active": "green", "paused": "red"},
)
_OUTCOMES = Outcomes(
    lambda outcome: state_text(outcome.schedule),
    {"created", "updated", "paused", "resumed", "deleted", "triggered", "backfilling", "unchanged"},
    {
        "ended": "no slot is left, so it does not fire; give a later --end-at, or another --cron or --every",
        "backfilling": "an event ScheduleBackfilled follows",
        "nothing_due": "--from is in the future",
        "unchanged": "already in that state",
        "not_found": "there is no such schedule",
        "already_ended": "it has ended",
        "skipped_busy": "another open workflow has its concurrency key",
        "exists": "there is another workflow with the id of this trigger",
    },
)
_AFTER_PUT: Mapping[str | None, str] = {
    ScheduleStatus.PAUSED: "it stays paused; `timer-service schedules resume` ends the pause",
    ScheduleStatus.ENDED: "it has ended and does not fire; delete it first to start it again",
}
"""What to know about a schedule with this status after a put."""
_AFTER_PAUSE = {
    "not_found": "there is no such schedule; if it is put later, it is paused",
    "already_ended": "it has ended; if it is started again, it is paused",
}


def _check_recurrence(*, cron: str | None, every: timedelta | None, zone: str | None, **_: object) -> None:
    if (cron is None) == (every is None):
        raise typer.BadParameter("Give either --cron or --every.")
    if every is not None and zone is not None:
        raise typer.BadParameter("--zone needs --cron: --every is elapsed time, which is equal in all zones.")


def _check_put(**arguments: Any) -> None:
    _check_recurrence(**arguments)
    if arguments["start"] is not None and arguments["data"] is not None:
        raise typer.BadParameter("--data cannot be combined with --start: use --input.")
    if arguments["start"] is None and any(arguments[name] is not None for name in _NEED_START):
        raise typer.BadParameter("--input, --queue, --deadline-in and --concurrency-key need --start.")


_NEED_START = ("start_input", "queue", "deadline_in", "concurrency_key")


def _explain_put(outcome: Outcome) -> str | None:
    return None if outcome.schedule is None or outcome.name == "ended" else _AFTER_PUT.get(outcome.schedule.status)


@outcome_command(app, _OUTCOMES, check=_check_put, explain=_explain_put)
async def put(
    client: TimerClient,
    tenant: Tenant,
    schedule: Name,
    cron: Cron = None,
    every: Every = None,
    zone: Zone = None,
    start_at: StartAt = None,
    end_at: EndAt = None,
    max_count: MaxCount = None,
    jitter: Jitter = None,
    catch_up: Policy = None,
    late_by: LateBy = None,
    catch_up_limit: CatchUpLimit = None,
    data: Data = None,
    start: Start = None,
    start_input: StartInput = None,
    queue: StartQueue = None,
    deadline_in: StartDeadline = None,
    concurrency_key: StartKey = None,
) -> Outcome:
    """Create a schedule, or replace its whole definition. A paused schedule stays paused.

    With --start, each slot starts a workflow instead of publishing an event.
    """
    wanted = start_of(
        start, start_input=start_input, queue=queue, deadline_in=deadline_in, concurrency_key=concurrency_key
    )
    return await client.schedules.put(
        tenant,
        schedule,
        cron=cron,
        every=every,
        zone=zone,
        start_at=start_at,
        end_at=end_at,
        max_count=max_count,
        jitter=jitter,
        catch_up=catch_up,
        late_by=late_by,
        catch_up_limit=catch_up_limit,
        **json_argument(data),
        start=wanted,
    )


def _explain_pause(outcome: Outcome) -> str | None:
    return _AFTER_PAUSE.get(outcome.name)


@outcome_command(app, _OUTCOMES, explain=_explain_pause, also_effective=_AFTER_PAUSE)
async def pause(client: TimerClient, tenant: Tenant, schedule: Name) -> Outcome:
    """Pause a schedule: no slot fires until it is resumed."""
    return await client.schedules.pause(tenant, schedule)


@outcome_command(app, _OUTCOMES)
async def resume(client: TimerClient, tenant: Tenant, schedule: Name) -> Outcome:
    """Resume a paused schedule. The slots of the pause do not fire."""
    return await client.schedules.resume(tenant, schedule)


@outcome_command(app, _OUTCOMES)
async def trigger(client: TimerClient, tenant: Tenant, schedule: Name, data: TriggerData = None) -> Outcome:
    """Fire a schedule once, now, also if it is paused or has ended."""
    return await client.schedules.trigger(tenant, schedule, **json_argument(data))


@outcome_command(app, _OUTCOMES)
async def backfill(
    client: TimerClient,
    tenant: Tenant,
    schedule: Name,
    from_: BackfillFrom,
    to: BackfillTo,
    limit: BackfillLimit = None,
) -> Outcome:
    """Fire past slots of a schedule under their own ids, also if it is paused or has ended."""
    return await client.schedules.backfill(tenant, schedule, from_at=from_, to_at=to, limit=limit)


@outcome_command(app, _OUTCOMES)
async def delete(client: TimerClient, tenant: Tenant, schedule: Name) -> Outcome:
    """Delete a schedule, and end its pause."""
    return await client.schedules.delete(tenant, schedule)


@get_command(app, print_schedule)
async def get(client: TimerClient, tenant: Tenant, schedule: Name, upcoming: Upcoming = 3) -> Schedule | None:
    """Show one schedule and its next slots."""
    return await client.schedules.get(tenant, schedule, upcoming=upcoming)


list_command(app, SCHEDULES, "List schedules in order of their names.", status=StatusFilter)


@broker_command(app, check=_check_recurrence)
async def preview(
    client: TimerClient,
    tenant: Tenant,
    cron: Cron = None,
    every: Every = None,
    zone: Zone = None,
    start_at: StartAt = None,
    end_at: EndAt = None,
    from_: FromTime = None,
    count: Count = 10,
    as_json: AsJson = False,
) -> None:
    """Show the slots that a schedule would have. Nothing is stored."""
    slots = await client.schedules.preview(
        tenant, cron=cron, every=every, zone=zone, start_at=start_at, end_at=end_at, from_at=from_, count=count
    )
    if as_json:
        typer.echo(json.dumps([format_time(slot, milliseconds=True) for slot in slots]))
        return
    for slot in slots:
        typer.echo(f"{slot_text(slot, zone)}  {format_distance(slot, datetime.now(UTC))}")
    if not slots:
        typer.echo("no slots", err=True)


@watch_command(app, schedule_event_line)
def watch(
    client: TimerClient, tenant: TenantOrAll = "*", schedule: OnlyName = None
) -> AsyncIterator[Mapping[str, Any]]:
    """Print the events of schedules that are published from now on."""
    return client.schedules.watch(tenant, schedule=schedule)
