"""`timer-service timers`. These commands use the broker only, never the database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from timer_service.cli import timer_files
from timer_service.cli.connection import broker_command
from timer_service.cli.output.lists import ListQuery, print_list, read_list
from timer_service.cli.output.outcomes import exit_not_found, print_outcome
from timer_service.cli.output.table import terminal_width
from timer_service.cli.output.text import format_time
from timer_service.cli.output.timers import timer_details, timer_event_line, timer_table
from timer_service.cli.parameters import (
    DURATION_FORMS,
    All,
    AsJson,
    Cursor,
    Limit,
    Tenant,
    TenantOrAll,
    check_json,
    read_duration,
    read_identifier,
    read_instant,
)
from timer_service.cli.watch import AsJsonLines, print_events
from timer_service.client import Outcome, State, Timer, TimerClient

app = typer.Typer(help="Schedule, cancel and look up timers, and watch them fire.", no_args_is_help=True)
app.add_typer(timer_files.app)

Call = Annotated[str, typer.Argument(parser=read_identifier, metavar="CALL", help="The serviceCallId of the timer.")]
OptionalCall = Annotated[
    str | None, typer.Argument(parser=read_identifier, metavar="CALL", help="The serviceCallId of the timer.")
]
Prefix = Annotated[
    str | None,
    typer.Option(parser=read_identifier, metavar="PREFIX", help="Cancel all timers whose serviceCallId begins so."),
]
DueTime = Annotated[
    datetime | None,
    typer.Option(parser=read_instant, metavar="TIME", help="Due time: ISO 8601 with an offset."),
]
DueIn = Annotated[
    timedelta | None,
    typer.Option("--in", parser=read_duration, metavar="DURATION", help=f"Due after: {DURATION_FORMS}."),
]
ExpiresAt = Annotated[
    datetime | None,
    typer.Option(parser=read_instant, metavar="TIME", help="If it fires then or later, it expires (needs --at)."),
]
LateBy = Annotated[
    timedelta | None,
    typer.Option(parser=read_duration, metavar="DURATION", help="If it fires that long after it is due, it expires."),
]
Data = Annotated[
    str | None, typer.Option(parser=check_json, metavar="JSON", help="JSON that the event returns. Default: no data.")
]
StateFilter = Annotated[State | None, typer.Option(case_sensitive=False, help="Only timers in this state.")]
DueBefore = Annotated[
    datetime | None,
    typer.Option(parser=read_instant, metavar="TIME", help="Only timers due before: ISO 8601 with an offset."),
]
DueAfter = Annotated[
    datetime | None,
    typer.Option(parser=read_instant, metavar="TIME", help="Only timers due then or later: ISO 8601 with an offset."),
]

_LIST = ListQuery("list-timers", "timers")
_WITHOUT_EFFECT = {"not_found", "already_reached", "already_expired", "ignored_reached", "over_quota"}
_EXPLANATIONS = {
    "cancelling": "an event TimersCancelled follows",
    "unchanged": "already in that state",
    "not_found": "there is no such timer",
    "already_reached": "it has fired",
    "already_expired": "it has expired",
    "ignored_reached": "it has fired and cannot be moved",
}


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


@broker_command(app, check=_check_times)
async def schedule(
    client: TimerClient,
    tenant: Tenant,
    call: Call,
    at: DueTime = None,
    in_: DueIn = None,
    expires_at: ExpiresAt = None,
    late_by: LateBy = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Schedule a timer, or change its due time and data."""
    more = {} if data is None else {"data": json.loads(data)}
    outcome = await client.schedule(tenant, call, at, due_in=in_, expires_at=expires_at, late_by=late_by, **more)
    _print_outcome(outcome, tenant, call, as_json)


def _check_timers(*, call: str | None, prefix: str | None, **_: object) -> None:
    if (call is None) == (prefix is None):
        raise typer.BadParameter("Give either CALL or --prefix.")


@broker_command(app, check=_check_timers)
async def cancel(
    client: TimerClient, tenant: Tenant, call: OptionalCall = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """Cancel a timer that has not fired, or all timers whose serviceCallId begins with a prefix."""
    if prefix is None:
        _print_outcome(await client.cancel(tenant, str(call)), tenant, str(call), as_json)
    else:
        _print_outcome(await client.cancel_prefix(tenant, prefix), tenant, f"{prefix}*", as_json)


@broker_command(app)
async def retry(client: TimerClient, tenant: Tenant, call: Call, as_json: AsJson = False) -> None:
    """Fire a Failed timer now."""
    _print_outcome(await client.retry(tenant, call), tenant, call, as_json)


@broker_command(app)
async def get(client: TimerClient, tenant: Tenant, call: Call, as_json: AsJson = False) -> None:
    """Show one timer."""
    timer = await client.get(tenant, call)
    if timer is None:
        exit_not_found(f"{tenant}/{call}")
    typer.echo(json.dumps(timer.document()) if as_json else "\n".join(timer_details(timer, datetime.now(UTC))))


@broker_command(app, "list")
async def list_timers(
    client: TimerClient,
    tenant: Tenant,
    state: StateFilter = None,
    due_before: DueBefore = None,
    due_after: DueAfter = None,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List timers in order of due time."""
    filters = {
        "state": state,
        "dueBefore": due_before and format_time(due_before, milliseconds=True),
        "dueAfter": due_after and format_time(due_after, milliseconds=True),
    }
    listing = await read_list(client, tenant, _LIST, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return timer_table([Timer.read(view) for view in views], datetime.now(UTC), terminal_width())

    print_list(listing, "timers", to_lines, as_json=as_json)


@broker_command(app)
async def count(client: TimerClient, tenant: Tenant, as_json: AsJson = False) -> None:
    """Count timers by state."""
    counts = await client.count(tenant)
    if as_json:
        typer.echo(json.dumps(counts.document()))
        return
    at_least = "" if counts.exact else " or more"
    for name, number in {**counts.by_state, "overdue": counts.overdue}.items():
        typer.echo(f"{name:<10} {number:>9}{at_least}")


@broker_command(app)
async def watch(client: TimerClient, tenant: TenantOrAll = "*", as_json: AsJsonLines = False) -> None:
    """Print the events of timers that are published from now on: fired, expired, and cancelled by prefix."""
    await print_events(client.watch(tenant), timer_event_line, tenant, as_json=as_json)


def _print_outcome(outcome: Outcome, tenant: str, call: str, as_json: bool) -> None:
    timer = outcome.timer
    print_outcome(
        outcome,
        f"{tenant}/{call}",
        state="" if timer is None else f"{timer.state}, due {format_time(timer.due_at)}",
        explanations=_EXPLANATIONS,
        has_effect=outcome.name not in _WITHOUT_EFFECT,
        as_json=as_json,
    )
