"""`timer-service events`. These commands use the broker only, never the database."""

import json
from typing import Annotated

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output import format_time, one_line
from timer_service.cli.parameters import AsJson, Tenant, read_identifier
from timer_service.cli.resources import Resource, Rows
from timer_service.client import BuriedEvent, TimerClient

app = typer.Typer(help="Buried events, which could not be published: list them, retry them.", no_args_is_help=True)

Events = Annotated[
    list[str] | None,
    typer.Argument(parser=read_identifier, metavar="EVENT", help="The ids of the events.", show_default=False),
]
Every = Annotated[bool, typer.Option("--all", help="Retry all buried events of the tenant.")]

EVENTS = Rows(
    query="list-buried-events",
    field="events",
    noun="buried events",
    view=BuriedEvent,
    head=("EVENT", "TYPE", "STORED", "ABOUT", "LAST ERROR"),
    row=lambda event, _: (
        event.event_id,
        event.type,
        format_time(event.added_at),
        " ".join(f"{name}={text}" for name, text in event.about.items()),
        event.last_error,
    ),
)
Resource(app, lambda client: client.events).list(EVENTS, "List buried events, oldest first.")


def _check_ids(*, event_ids: list[str] | None, every: bool, **_: object) -> None:
    if bool(event_ids) == every:
        raise typer.BadParameter("Give the ids of events, or --all.")


@broker_command(app, check=_check_ids)
async def retry(
    client: TimerClient, tenant: Tenant, event_ids: Events = None, every: Every = False, as_json: AsJson = False
) -> None:
    """Publish buried events again, under the same ids."""
    wanted = [event.event_id async for event in client.events.buried(tenant)] if every else event_ids or []
    outcomes = [(event_id, (await client.events.retry(tenant, event_id)).name) for event_id in wanted]
    if as_json:
        typer.echo(json.dumps([{"eventId": event_id, "outcome": name} for event_id, name in outcomes]))
    else:
        for event_id, name in outcomes:
            typer.echo(one_line(f"{name}: {tenant}/{event_id}"), err=name == "not_found")
        if not outcomes:
            typer.echo("no buried events", err=True)
    if any(name == "not_found" for _, name in outcomes):
        raise typer.Exit(1)
