"""`timer-service schedules`. These commands use the broker only, never the database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output.lists import ListQuery, print_list, read_list
from timer_service.cli.output.outcomes import exit_not_found, print_outcome
from timer_service.cli.output.schedules import (
    schedule_details,
    schedule_event_line,
    schedule_table,
    slot_lines,
    state_text,
)
from timer_service.cli.output.table import terminal_width
from timer_service.cli.output.text import format_time
from timer_service.cli.parameters import All, AsJson, Cursor, Limit, Tenant, TenantOrAll
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
    named_options,
    start_of,
)
from timer_service.cli.watch import AsJsonLines, print_events
from timer_service.client import Outcome, Schedule, ScheduleStatus, TimerClient

app = typer.Typer(help="Recurring timers: cron expressions and fixed intervals.", no_args_is_help=True)

_LIST = ListQuery("list-schedules", "schedules")
_WITH_EFFECT = {"created", "updated", "paused", "resumed", "deleted", "triggered", "backfilling", "unchanged"}
_EXPLANATIONS = {
    "ended": "no slot is left, so it does not fire; give a later --end-at, or another --cron or --every",
    "backfilling": "an event ScheduleBackfilled follows",
    "nothing_due": "--from is in the future",
    "unchanged": "already in that state",
    "not_found": "there is no such schedule",
    "already_ended": "it has ended",
    "skipped_busy": "another open workflow has its concurrency key",
    "exists": "there is another workflow with the id of this trigger",
}

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


@broker_command(app, check=_check_put)
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
    as_json: AsJson = False,
) -> None:
    """Create a schedule, or replace its whole definition. A paused schedule stays paused.

    With --start, each slot starts a workflow instead of publishing an event.
    """
    wanted = start_of(
        start, start_input=start_input, queue=queue, deadline_in=deadline_in, concurrency_key=concurrency_key
    )
    with named_options():
        outcome = await client.schedules.put(
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
            **_data_argument(data),
            start=wanted,
        )
    status = None if outcome.schedule is None or outcome.name == "ended" else outcome.schedule.status
    _print_outcome(outcome, tenant, schedule, as_json, _AFTER_PUT.get(status))


@broker_command(app)
async def pause(client: TimerClient, tenant: Tenant, schedule: Name, as_json: AsJson = False) -> None:
    """Pause a schedule: no slot fires until it is resumed."""
    outcome = await client.schedules.pause(tenant, schedule)
    explanation = _AFTER_PAUSE.get(outcome.name)
    _print_outcome(outcome, tenant, schedule, as_json, explanation, is_stored=explanation is not None)


@broker_command(app)
async def resume(client: TimerClient, tenant: Tenant, schedule: Name, as_json: AsJson = False) -> None:
    """Resume a paused schedule. The slots of the pause do not fire."""
    _print_outcome(await client.schedules.resume(tenant, schedule), tenant, schedule, as_json)


@broker_command(app)
async def trigger(
    client: TimerClient, tenant: Tenant, schedule: Name, data: TriggerData = None, as_json: AsJson = False
) -> None:
    """Fire a schedule once, now, also if it is paused or has ended."""
    with named_options():
        outcome = await client.schedules.trigger(tenant, schedule, **_data_argument(data))
    _print_outcome(outcome, tenant, schedule, as_json)


@broker_command(app)
async def backfill(
    client: TimerClient,
    tenant: Tenant,
    schedule: Name,
    from_: BackfillFrom,
    to: BackfillTo,
    limit: BackfillLimit = None,
    as_json: AsJson = False,
) -> None:
    """Fire past slots of a schedule under their own ids, also if it is paused or has ended."""
    with named_options():
        outcome = await client.schedules.backfill(tenant, schedule, from_at=from_, to_at=to, limit=limit)
    _print_outcome(outcome, tenant, schedule, as_json)


@broker_command(app)
async def delete(client: TimerClient, tenant: Tenant, schedule: Name, as_json: AsJson = False) -> None:
    """Delete a schedule, and end its pause."""
    _print_outcome(await client.schedules.delete(tenant, schedule), tenant, schedule, as_json)


@broker_command(app)
async def get(
    client: TimerClient, tenant: Tenant, schedule: Name, upcoming: Upcoming = 3, as_json: AsJson = False
) -> None:
    """Show one schedule and its next slots."""
    found = await client.schedules.get(tenant, schedule, upcoming=upcoming)
    if found is None:
        exit_not_found(f"{tenant}/{schedule}")
    typer.echo(json.dumps(found.document()) if as_json else "\n".join(schedule_details(found, datetime.now(UTC))))


@broker_command(app, "list")
async def list_schedules(
    client: TimerClient,
    tenant: Tenant,
    status: StatusFilter = None,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List schedules in order of their names."""
    filters = {"status": status}
    listing = await read_list(client, tenant, _LIST, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return schedule_table([Schedule.read(view) for view in views], datetime.now(UTC), terminal_width())

    print_list(listing, "schedules", to_lines, as_json=as_json)


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
    with named_options():
        slots = await client.schedules.preview(
            tenant, cron=cron, every=every, zone=zone, start_at=start_at, end_at=end_at, from_at=from_, count=count
        )
    if as_json:
        typer.echo(json.dumps([format_time(slot, milliseconds=True) for slot in slots]))
        return
    for line in slot_lines(slots, zone, datetime.now(UTC)):
        typer.echo(line)
    if not slots:
        typer.echo("no slots", err=True)


@broker_command(app)
async def watch(
    client: TimerClient, tenant: TenantOrAll = "*", schedule: OnlyName = None, as_json: AsJsonLines = False
) -> None:
    """Print the events of schedules that are published from now on."""
    about = "" if schedule is None else f" and schedule {schedule}"
    events = client.schedules.watch(tenant, schedule=schedule)
    await print_events(events, schedule_event_line, tenant, about=about, as_json=as_json)


def _print_outcome(
    outcome: Outcome, tenant: str, name: str, as_json: bool, explanation: str | None = None, *, is_stored: bool = False
) -> None:
    """Print an outcome. `explanation` replaces the usual one. A command that `is_stored` takes effect later."""
    schedule = outcome.schedule
    print_outcome(
        outcome,
        f"{tenant}/{name}",
        state="" if schedule is None else state_text(schedule, datetime.now(UTC)),
        explanations=_EXPLANATIONS if explanation is None else {outcome.name: explanation},
        has_effect=outcome.name in _WITH_EFFECT or is_stored,
        as_json=as_json,
    )


def _data_argument(data: str | None) -> dict[str, Any]:
    return {} if data is None else {"data": json.loads(data)}
