"""`timer-service events`. These commands use the broker only, never the database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.output.lists import ListQuery, print_list, read_list
from timer_service.cli.output.text import format_time, one_line
from timer_service.cli.parameters import All, AsJson, Cursor, Limit, Tenant, read_identifier
from timer_service.client import BuriedEvent, Outcome, TimerClient

app = typer.Typer(help="Buried events, which could not be published: list them, retry them.", no_args_is_help=True)

Events = Annotated[
    list[str] | None,
    typer.Argument(parser=read_identifier, metavar="EVENT", help="The ids of the events.", show_default=False),
]
Every = Annotated[bool, typer.Option("--all", help="Retry all buried events of the tenant.")]

_LIST = ListQuery("list-buried-events", "events")


@broker_command(app, "list")
async def list_events(
    client: TimerClient,
    tenant: Tenant,
    limit: Limit = 50,
    everything: All = False,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List buried events, oldest first."""
    listing = await read_list(client, tenant, _LIST, {}, limit=None if everything else limit, cursor=cursor)
    print_list(listing, "buried events", _event_lines, as_json=as_json)


def _check_ids(*, event_ids: list[str] | None, every: bool, **_: object) -> None:
    if bool(event_ids) == every:
        raise typer.BadParameter("Give the ids of events, or --all.")


@broker_command(app, check=_check_ids)
async def retry(
    client: TimerClient, tenant: Tenant, event_ids: Events = None, every: Every = False, as_json: AsJson = False
) -> None:
    """Publish buried events again, under the same ids."""
    wanted = [event.event_id async for event in client.events.buried(tenant)] if every else event_ids or []
    outcomes = [(event_id, await client.events.retry(tenant, event_id)) for event_id in wanted]
    if as_json:
        typer.echo(json.dumps([{"eventId": event_id, "outcome": outcome.name} for event_id, outcome in outcomes]))
    else:
        for event_id, outcome in outcomes:
            typer.echo(one_line(f"{outcome.name}: {tenant}/{event_id}"), err=_is_missing(outcome))
        if not outcomes:
            typer.echo("no buried events", err=True)
    if any(_is_missing(outcome) for _, outcome in outcomes):
        raise typer.Exit(1)


def _is_missing(outcome: Outcome) -> bool:
    return outcome.name == "not_found"


def _event_lines(views: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for event in map(BuriedEvent.read, views):
        fields = " ".join(f"{name}={text}" for name, text in event.about.items())
        yield one_line(f"{event.event_id}  {event.type}  {format_time(event.added_at)}  {fields}")
        yield f"  {one_line(event.last_error)}"
