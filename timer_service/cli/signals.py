"""`timer-service signals`. These commands use the broker only, never the database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output.lists import ListQuery, print_list, read_list
from timer_service.cli.output.outcomes import exit_not_found, print_outcome
from timer_service.cli.output.signals import (
    firing_table,
    signal_details,
    signal_event_line,
    signal_table,
    task_table,
    trigger_text,
)
from timer_service.cli.output.table import terminal_width
from timer_service.cli.parameters import (
    All,
    AsJson,
    Cursor,
    Limit,
    Tenant,
    TenantOrAll,
    read_identifier,
    read_instant,
)
from timer_service.cli.watch import AsJsonLines, print_events
from timer_service.client import Firing, Outcome, Signal, SignalStatus, Task, TimerClient

app = typer.Typer(
    help="Reminders that fire when a work item changes its status, or at an instant.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(parser=read_identifier, metavar="SIGNAL", help="The signalId.")]
Item = Annotated[str, typer.Argument(parser=read_identifier, metavar="ITEM", help="The workItemId.")]
NewStatus = Annotated[str, typer.Argument(metavar="STATUS", help="The new status of the work item.")]
ItemToWatch = Annotated[
    str | None, typer.Option(parser=read_identifier, metavar="ITEM", help="The work item that the signal waits for.")
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(metavar="STATUS", help="Fire when the work item changes to this status. May be repeated."),
]
FireTime = Annotated[
    datetime | None,
    typer.Option(parser=read_instant, metavar="TIME", help="Fire at this instant instead: ISO 8601 with an offset."),
]
Note = Annotated[str | None, typer.Option(metavar="TEXT", help="What the signal is for.")]
StatusFilter = Annotated[SignalStatus | None, typer.Option(case_sensitive=False, help="Only signals in this status.")]
ItemFilter = Annotated[
    str | None, typer.Option(parser=read_identifier, metavar="ITEM", help="Only signals of this work item.")
]

_LIST = ListQuery("list-signals", "signals")
_FIRINGS = ListQuery("list-firings", "firings")
_TASKS = ListQuery("list-tasks", "tasks")
_WITHOUT_EFFECT = {
    "exists",
    "created_invalid",
    "not_found",
    "already_fired",
    "already_ended",
    "over_quota",
}
_EXPLANATIONS = {
    "unchanged": "already in that state",
    "exists": "another signal has this name; it is not changed",
    "created_invalid": "the service cannot read its trigger, so it never fires",
    "not_found": "there is no such signal",
    "already_fired": "it has fired",
    "already_ended": "it was cancelled or resolved",
}


def _check_trigger(*, item: str | None, on: list[str] | None, at: datetime | None, **_: object) -> None:
    if on and item is None:
        raise typer.BadParameter("--on needs --item: the work item whose status changes.")
    if bool(on) == (at is not None):
        raise typer.BadParameter("Give either --on (with --item) or --at.")


@broker_command(app, check=_check_trigger)
async def create(
    client: TimerClient,
    tenant: Tenant,
    signal: Name,
    item: ItemToWatch = None,
    on: Statuses = None,
    at: FireTime = None,
    note: Note = None,
    as_json: AsJson = False,
) -> None:
    """Create a signal that fires when a work item changes its status, or at an instant."""
    outcome = await client.signals.create(tenant, signal, item=item, on=on or [], at=at, note=note)
    _print_outcome(outcome, tenant, signal, as_json)


@broker_command(app)
async def transition(
    client: TimerClient, tenant: Tenant, item: Item, status: NewStatus, as_json: AsJson = False
) -> None:
    """Report that a work item has a new status."""
    _print_outcome(await client.signals.transition(tenant, item, status), tenant, item, as_json)


@broker_command(app)
async def pause(client: TimerClient, tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:
    """Pause a signal: it does not fire until it is activated."""
    _print_outcome(await client.signals.pause(tenant, signal), tenant, signal, as_json)


@broker_command(app)
async def activate(client: TimerClient, tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:
    """Activate a paused or fired signal: it fires on what happens from now on."""
    _print_outcome(await client.signals.activate(tenant, signal), tenant, signal, as_json)


@broker_command(app)
async def cancel(client: TimerClient, tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:
    """Cancel a signal: it never fires again."""
    _print_outcome(await client.signals.cancel(tenant, signal), tenant, signal, as_json)


@broker_command(app)
async def resolve(client: TimerClient, tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:
    """Resolve a signal: mark its purpose as done."""
    _print_outcome(await client.signals.resolve(tenant, signal), tenant, signal, as_json)


@broker_command(app)
async def get(client: TimerClient, tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:
    """Show one signal."""
    found = await client.signals.get(tenant, signal)
    if found is None:
        exit_not_found(f"{tenant}/{signal}")
    typer.echo(json.dumps(found.document()) if as_json else "\n".join(signal_details(found)))


@broker_command(app, "list")
async def list_signals(
    client: TimerClient,
    tenant: Tenant,
    status: StatusFilter = None,
    item: ItemFilter = None,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List signals in order of their names."""
    filters = {"status": status, "workItemId": item}
    listing = await read_list(client, tenant, _LIST, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return signal_table([Signal.read(view) for view in views], terminal_width())

    print_list(listing, "signals", to_lines, as_json=as_json)


@broker_command(app)
async def firings(
    client: TimerClient,
    tenant: Tenant,
    signal: Name,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the firings of a signal, oldest first: what made its trigger true, and what became of it."""
    filters = {"signalId": signal}
    listing = await read_list(client, tenant, _FIRINGS, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return firing_table([Firing.read(view) for view in views], terminal_width())

    print_list(listing, "firings", to_lines, as_json=as_json)


@broker_command(app)
async def tasks(
    client: TimerClient,
    tenant: Tenant,
    item: Item,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List the follow-up tasks of a work item, oldest first: each signal that fired for it added one."""
    filters = {"workItemId": item}
    listing = await read_list(client, tenant, _TASKS, filters, limit=None if everything else limit, cursor=cursor)

    def to_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        return task_table([Task.read(view) for view in views], terminal_width())

    print_list(listing, "tasks", to_lines, as_json=as_json)


@broker_command(app)
async def watch(client: TimerClient, tenant: TenantOrAll = "*", as_json: AsJsonLines = False) -> None:
    """Print the events of signals that are published from now on: fired, and firings that were given up."""
    await print_events(client.signals.watch(tenant), signal_event_line, tenant, as_json=as_json)


def _print_outcome(outcome: Outcome, tenant: str, name: str, as_json: bool) -> None:
    signal = outcome.signal
    print_outcome(
        outcome,
        f"{tenant}/{name}",
        state="" if signal is None else f"{signal.status}, waits for {trigger_text(signal)}",
        explanations=_EXPLANATIONS,
        has_effect=outcome.name not in _WITHOUT_EFFECT,
        as_json=as_json,
    )
