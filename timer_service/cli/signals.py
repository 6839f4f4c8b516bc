"""`timer-service signals`: over the broker, never the database."""

import json
from typing import Annotated

import typer

from timer_service.cli.arguments import instant
from timer_service.cli.connecting import with_client
from timer_service.cli.listing import first, terminal_width
from timer_service.cli.running import run
from timer_service.cli.showing_signals import signal_details, signal_document, signal_outcome_line, signal_table
from timer_service.client import Outcome, SignalStatus

app = typer.Typer(help="Reminders of what happens to work items: create, look up, pause, cancel.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Who owns the signal.")]
Name = Annotated[str, typer.Argument(help="Its signalId.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_CAME_TO_NOTHING = {"exists", "created_invalid", "not_found", "already_fired", "already_ended", "ignored_stale"}


@app.command()
def create(  # noqa: PLR0917 - typer's way
    tenant: Tenant,
    signal: Name,
    item: Annotated[str | None, typer.Option(help="The work item to wait for.")] = None,
    on: Annotated[list[str] | None, typer.Option(help="Fire when it comes to this status; may be repeated.")] = None,
    at: Annotated[str | None, typer.Option(help="Fire at this instant instead: ISO 8601 with an offset.")] = None,
    note: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Create a signal and wait for the outcome."""
    due = None if at is None else instant("--at", at)
    made = with_client(lambda client: client.signals.create(tenant, signal, item=item, on=on or [], at=due, note=note))
    _tell(run(made), tenant, signal, as_json)


@app.command()
def transition(
    tenant: Tenant,
    item: Annotated[str, typer.Argument(help="The workItemId.")],
    to: Annotated[str, typer.Argument(help="The status it has come to.")],
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Tell that a work item has come to a status, and wait for the outcome."""
    _tell(run(with_client(lambda client: client.signals.transition(tenant, item, to))), tenant, item, as_json)


@app.command()
def pause(tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Have a signal not fire until it is activated."""
    _tell(run(with_client(lambda client: client.signals.pause(tenant, signal))), tenant, signal, as_json)


@app.command()
def activate(tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Have a paused or fired signal fire on what happens from now on."""
    _tell(run(with_client(lambda client: client.signals.activate(tenant, signal))), tenant, signal, as_json)


@app.command()
def cancel(tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Have a signal fire no more."""
    _tell(run(with_client(lambda client: client.signals.cancel(tenant, signal))), tenant, signal, as_json)


@app.command()
def resolve(tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Tell that what a signal was for is dealt with."""
    _tell(run(with_client(lambda client: client.signals.resolve(tenant, signal))), tenant, signal, as_json)


@app.command()
def get(tenant: Tenant, signal: Name, as_json: AsJson = False) -> None:  # noqa: FBT002 - typer's way
    """Show one signal."""
    found = run(with_client(lambda client: client.signals.get(tenant, signal)))
    if found is None:
        typer.echo(f"not found: {tenant}/{signal}", err=True)
        raise typer.Exit(1)
    typer.echo(json.dumps(signal_document(found)) if as_json else "\n".join(signal_details(found)))


@app.command("list")
def list_(
    tenant: Tenant,
    status: Annotated[SignalStatus | None, typer.Option(case_sensitive=False, help="Only those of it.")] = None,
    item: Annotated[str | None, typer.Option(help="Only those of this work item.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most to show.")] = 50,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """List signals in order of their names."""
    found = run(with_client(lambda client: first(client.signals.list(tenant, status=status, item=item), limit + 1)))
    if as_json:
        typer.echo(json.dumps([signal_document(signal) for signal in found[:limit]]))
        return
    for line in signal_table(found[:limit], terminal_width()):
        typer.echo(line)
    if len(found) > limit:
        typer.echo(f"There are more than {limit}; see them with --limit, --status or --item.", err=True)


def _tell(outcome: Outcome, tenant: str, name: str, as_json: bool) -> None:  # noqa: FBT001
    """Print an outcome; exit with 1 when the command came to nothing."""
    if as_json:
        signal = {} if outcome.signal is None else {"signal": signal_document(outcome.signal)}
        typer.echo(json.dumps({"commandId": outcome.command_id, "outcome": outcome.name, **signal}))
    else:
        typer.echo(signal_outcome_line(outcome, tenant, name), err=outcome.name in _CAME_TO_NOTHING)
    if outcome.name in _CAME_TO_NOTHING:
        raise typer.Exit(1)
