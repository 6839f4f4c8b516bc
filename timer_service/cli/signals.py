"""`timer-service signals`. These commands use the broker only, never the database."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from timer_service.cli.output import fields_of, format_time, one_line, print_fields
from timer_service.cli.parameters import (
    Tenant,
    TenantOrAll,
    choice,
    identifier,
    identifier_option,
    instant,
)
from timer_service.cli.resources import Outcomes, Rows, get_command, list_command, outcome_command, watch_command
from timer_service.client import Firing, Outcome, Signal, SignalStatus, Task, TimerClient

app = typer.Typer(
    help="Reminders that fire when a work item changes its status, or at an instant.", no_args_is_help=True
)

Name = Annotated[str, identifier("SIGNAL", "The signalId.")]
Item = Annotated[str, identifier("ITEM", "The workItemId.")]
NewStatus = Annotated[str, typer.Argument(metavar="STATUS", help="The new status of the work item.")]
ItemToWatch = Annotated[str | None, identifier_option("ITEM", "The work item that the signal waits for.")]
Statuses = Annotated[
    list[str] | None,
    typer.Option(metavar="STATUS", help="Fire when the work item changes to this status. May be repeated."),
]
FireTime = Annotated[datetime | None, instant("Fire at this instant instead: ISO 8601 with an offset.")]
Note = Annotated[str | None, typer.Option(metavar="TEXT", help="What the signal is for.")]
StatusFilter = Annotated[SignalStatus | None, choice("Only signals in this status.", "--status")]
ItemFilter = Annotated[str | None, identifier_option("ITEM", "Only signals of this work item.", "--item")]


def trigger_text(signal: Signal) -> str:
    """Return the statuses or the instant that a signal waits for."""
    if signal.trigger_error is not None:
        return f"nothing: {signal.trigger_error}"
    match signal.trigger_spec:
        case {"kind": "work_item.status.transition", "to": [*statuses]}:
            return " or ".join(map(str, statuses))
        case {"kind": "time.at", "at": str(at)}:
            return at
    return json.dumps(signal.trigger_spec)


def _cause(item: str | None, cause: str, error: str | None, remark: str | None) -> str:
    remark = f"error: {error}" if error else remark
    return (f"{item}: " if item else "") + cause + (f" ({remark})" if remark else "")


SIGNALS = Rows(
    query="list-signals",
    field="signals",
    view=Signal,
    head=("SIGNAL", "STATUS", "LAST FIRED", "WAITS FOR (NOTE)"),
    row=lambda signal, _: (
        signal.name,
        signal.status,
        "" if signal.last_fired_at is None else format_time(signal.last_fired_at),
        _cause(signal.item, trigger_text(signal), signal.last_error, signal.note),
    ),
    colours={"active": "green", "fired": "yellow", "paused": "red"},
)
FIRINGS = Rows(
    query="list-firings",
    field="firings",
    view=Firing,
    head=("FIRING", "STATUS", "CREATED", "CAUSE (TASK OR ERROR)"),
    row=lambda firing, _: (
        firing.firing_id,
        firing.status,
        format_time(firing.created_at),
        _cause(firing.item, firing.dedupe_key, firing.last_error, firing.task_id),
    ),
    colours={"enqueued": "green", "failed": "red"},
)
TASKS = Rows(
    query="list-tasks",
    field="tasks",
    view=Task,
    head=("TASK", "CREATED", "SIGNAL"),
    row=lambda task, _: (task.task_id, format_time(task.created_at), task.signal),
)
_OUTCOMES = Outcomes(
    lambda outcome: f"{outcome.signal.status}, waits for {trigger_text(outcome.signal)}" if outcome.signal else "",
    {"created", "transitioned", "paused", "activated", "cancelled", "resolved", "unchanged"},
    {
        "unchanged": "already in that state",
        "exists": "another signal has this name; it is not changed",
        "created_invalid": "the service cannot read its trigger, so it never fires",
        "not_found": "there is no such signal",
        "already_fired": "it has fired",
        "already_ended": "it was cancelled or resolved",
    },
)


def print_signal(signal: Signal) -> None:
    """Print a line for each field of a signal."""
    typer.echo(one_line(f"{signal.tenant}/{signal.name}"))
    fields = fields_of(signal, datetime.now(UTC), leave_out=["name", "trigger_kind", "trigger_spec", "trigger_error"])
    print_fields({"status": fields.pop("status"), "waits for": trigger_text(signal), **fields})


def signal_event_line(event: Mapping[str, Any]) -> str:
    """Return a `work.signal.fired` or `work.signal.failed` event as a line."""
    payload = event["payload"]
    name = f"{payload['tenantId']}/{payload['signalId']}"
    item = f"  {payload['workItemId']}" if "workItemId" in payload else ""
    if event["type"] == "work.signal.failed":
        return one_line(f"{payload['failedAt']}  {name}{item}  failed: {payload['error']}")
    task = f"  task {payload['taskId']}" if "taskId" in payload else ""
    return one_line(f"{payload['firedAt']}  {name}{item}  fired{task}")


def _check_trigger(*, item: str | None, on: list[str] | None, at: datetime | None, **_: object) -> None:
    if on and item is None:
        raise typer.BadParameter("--on needs --item: the work item whose status changes.")
    if bool(on) == (at is not None):
        raise typer.BadParameter("Give either --on (with --item) or --at.")


@outcome_command(app, _OUTCOMES, check=_check_trigger)
async def create(
    client: TimerClient,
    tenant: Tenant,
    signal: Name,
    item: ItemToWatch = None,
    on: Statuses = None,
    at: FireTime = None,
    note: Note = None,
) -> Outcome:
    """Create a signal that fires when a work item changes its status, or at an instant."""
    return await client.signals.create(tenant, signal, item=item, on=on or [], at=at, note=note)


@outcome_command(app, _OUTCOMES)
async def transition(client: TimerClient, tenant: Tenant, item: Item, status: NewStatus) -> Outcome:
    """Report that a work item has a new status."""
    return await client.signals.transition(tenant, item, status)


@outcome_command(app, _OUTCOMES)
async def pause(client: TimerClient, tenant: Tenant, signal: Name) -> Outcome:
    """Pause a signal: it does not fire until it is activated."""
    return await client.signals.pause(tenant, signal)


@outcome_command(app, _OUTCOMES)
async def activate(client: TimerClient, tenant: Tenant, signal: Name) -> Outcome:
    """Activate a paused or fired signal: it fires on what happens from now on."""
    return await client.signals.activate(tenant, signal)


@outcome_command(app, _OUTCOMES)
async def cancel(client: TimerClient, tenant: Tenant, signal: Name) -> Outcome:
    """Cancel a signal: it never fires again."""
    return await client.signals.cancel(tenant, signal)


@outcome_command(app, _OUTCOMES)
async def resolve(client: TimerClient, tenant: Tenant, signal: Name) -> Outcome:
    """Resolve a signal: mark its purpose as done."""
    return await client.signals.resolve(tenant, signal)


@get_command(app, print_signal)
async def get(client: TimerClient, tenant: Tenant, signal: Name) -> Signal | None:
    """Show one signal."""
    return await client.signals.get(tenant, signal)


list_command(app, SIGNALS, "List signals in order of their names.", status=StatusFilter, workItemId=ItemFilter)
list_command(
    app,
    FIRINGS,
    "List the firings of a signal, oldest first: what made its trigger true, and what became of it.",
    name="firings",
    signalId=Name,
)
list_command(
    app,
    TASKS,
    "List the follow-up tasks of a work item, oldest first: each signal that fired for it added one.",
    name="tasks",
    workItemId=Item,
)


@watch_command(app, signal_event_line)
def watch(client: TimerClient, tenant: TenantOrAll = "*") -> AsyncIterator[Mapping[str, Any]]:
    """Print the events of signals that are published from now on: fired, and firings that were given up."""
    return client.signals.watch(tenant)
