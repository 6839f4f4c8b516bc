"""`timer-service timers`. These commands use the broker only, never the database."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from timer_service.cli import timer_files
from timer_service.cli.output import fields_of, format_distance, format_time, one_line, print_fields
from timer_service.cli.parameters import (
    DURATION_FORMS,
    Tenant,
    TenantOrAll,
    choice,
    duration,
    identifier,
    identifier_option,
    instant,
    json_argument,
    json_text,
)
from timer_service.cli.resources import (
    Outcomes,
    Rows,
    get_command,
    list_command,
    outcome_command,
    print_counts,
    watch_command,
)
from timer_service.client import Counts, Outcome, State, Timer, TimerClient
from timer_service.core.values.instant import format_instant, parse_instant

app = typer.Typer(help="Schedule, cancel and look up timers, and watch them fire.", no_args_is_help=True)
app.add_typer(timer_files.app)

Call = Annotated[str, identifier("CALL", "The serviceCallId of the timer.")]
OptionalCall = Annotated[str | None, identifier("CALL", "The serviceCallId of the timer.")]
Prefix = Annotated[str | None, identifier_option("PREFIX", "Cancel all timers whose serviceCallId begins so.")]
DueTime = Annotated[datetime | None, instant("Due time: ISO 8601 with an offset.")]
DueIn = Annotated[timedelta | None, duration(f"Due after: {DURATION_FORMS}.", "--in")]
ExpiresAt = Annotated[datetime | None, instant("If it fires then or later, it expires (needs --at).")]
LateBy = Annotated[timedelta | None, duration("If it fires that long after it is due, it expires.")]
Data = Annotated[str | None, json_text("JSON that the event returns. Default: no data.")]
StateFilter = Annotated[State | None, choice("Only timers in this state.", "--state")]
DueBefore = Annotated[datetime | None, instant("Only timers due before: ISO 8601 with an offset.", "--due-before")]
DueAfter = Annotated[datetime | None, instant("Only timers due then or later: ISO 8601 with an offset.", "--due-after")]

TIMERS = Rows(
    query="list-timers",
    field="timers",
    view=Timer,
    head=("CALL", "STATE", "DUE", "", "ATTEMPT", "LAST ERROR"),
    row=lambda timer, now: (
        timer.call,
        timer.state,
        format_time(timer.due_at),
        format_distance(timer.due_at, now),
        str(timer.attempt),
        timer.last_error or "",
    ),
    colours={"Reached": "green", "Expired": "yellow", "Cancelled": "yellow", "Failed": "red"},
)
_OUTCOMES = Outcomes(
    lambda outcome: f"{outcome.timer.state}, due {format_time(outcome.timer.due_at)}" if outcome.timer else "",
    {"scheduled", "rescheduled", "updated", "cancelled", "cancelling", "retried", "unchanged"},
    {
        "cancelling": "an event TimersCancelled follows",
        "unchanged": "already in that state",
        "not_found": "there is no such timer",
        "already_reached": "it has fired",
        "already_expired": "it has expired",
        "ignored_reached": "it has fired and cannot be moved",
    },
)


def print_timer(timer: Timer) -> None:
    """Print a line for each field of a timer."""
    typer.echo(one_line(f"{timer.tenant}/{timer.call}"))
    fields = fields_of(timer, datetime.now(UTC), leave_out=["call"])
    first = {name: fields.pop(name) for name in ("state", "due at")}
    print_fields({**first, **fields})


def timer_event_line(event: Mapping[str, Any]) -> str:
    """Return a DueTimeReached, TimerExpired or TimersCancelled event as a line."""
    payload = event["payload"]
    if event["type"] == "TimersCancelled":
        at = format_instant(event["timestampMs"])
        return one_line(f"{at}  {payload['tenantId']}/{payload['prefix']}*  cancelled: {payload['count']}")
    at = payload["reachedAt" if event["type"] == "DueTimeReached" else "expiredAt"]
    late = parse_instant(at) - parse_instant(payload["dueAt"])
    how = "" if event["type"] == "DueTimeReached" else "expired, "
    data = f"  {json.dumps(payload['data'])}" if "data" in payload else ""
    name = f"{payload['tenantId']}/{payload['serviceCallId']}"
    return one_line(f"{at}  {name}  {how}due {payload['dueAt']} (+{late} ms){data}")


def _check_times(
    *,
    at: datetime | None,
    in_: timedelta | None,
    expires_at: datetime | None,
    late_by: timedelta | None,
    **_: object,
) -> None:
    if (at is None) == (in_ is None):
        raise typer.BadParameter("Give either --at or --in.")
    if expires_at is not None and (late_by is not None or at is None):
        raise typer.BadParameter("Give --expires-at with --at and without --late-by.")


@outcome_command(app, _OUTCOMES, check=_check_times)
async def schedule(
    client: TimerClient,
    tenant: Tenant,
    call: Call,
    at: DueTime = None,
    in_: DueIn = None,
    expires_at: ExpiresAt = None,
    late_by: LateBy = None,
    data: Data = None,
) -> Outcome:
    """Schedule a timer, or change its due time and data."""
    times: dict[str, Any] = {"due_in": in_, "expires_at": expires_at, "late_by": late_by}
    return await client.schedule(tenant, call, at, **times, **json_argument(data))


def _check_timers(*, call: str | None, prefix: str | None, **_: object) -> None:
    if (call is None) == (prefix is None):
        raise typer.BadParameter("Give either CALL or --prefix.")


@outcome_command(app, _OUTCOMES, check=_check_timers)
async def cancel(client: TimerClient, tenant: Tenant, call: OptionalCall = None, prefix: Prefix = None) -> Outcome:
    """Cancel a timer that has not fired, or all timers whose serviceCallId begins with a prefix."""
    return await (client.cancel(tenant, str(call)) if prefix is None else client.cancel_prefix(tenant, prefix))


@outcome_command(app, _OUTCOMES)
async def retry(client: TimerClient, tenant: Tenant, call: Call) -> Outcome:
    """Fire a Failed timer now."""
    return await client.retry(tenant, call)


@get_command(app, print_timer)
async def get(client: TimerClient, tenant: Tenant, call: Call) -> Timer | None:
    """Show one timer."""
    return await client.get(tenant, call)


list_command(
    app, TIMERS, "List timers in order of due time.", state=StateFilter, dueBefore=DueBefore, dueAfter=DueAfter
)


def _print_counts(counts: Counts) -> None:
    print_counts({**counts.by_state, "overdue": counts.overdue}, exact=counts.exact)


@get_command(app, _print_counts)
async def count(client: TimerClient, tenant: Tenant) -> Counts:
    """Count timers by state."""
    return await client.count(tenant)


@watch_command(app, timer_event_line)
def watch(client: TimerClient, tenant: TenantOrAll = "*") -> AsyncIterator[Mapping[str, Any]]:
    """Print the events of timers that are published from now on: fired, expired, and cancelled by prefix."""
    return client.watch(tenant)
