"""`timer-service events`: over the broker, never the database."""

import json
from typing import Annotated

import typer

from timer_service.cli.connecting import with_client
from timer_service.cli.listing import first
from timer_service.cli.running import run
from timer_service.cli.showing import local, one_line, wire
from timer_service.client import BuriedEvent, Outcome, TimerClient

app = typer.Typer(help="Events that could not be published: list them, retry them.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Whose events.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(
    tenant: Tenant,
    limit: Annotated[int, typer.Option(min=1, help="The most to show.")] = 50,
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """List the events that were given up, oldest first."""
    found = run(with_client(lambda client: first(client.events.buried(tenant), limit + 1)))
    if as_json:
        typer.echo(json.dumps([_document(event) for event in found[:limit]]))
        return
    for event in found[:limit]:
        about = " ".join(f"{name}={text}" for name, text in event.about.items())
        typer.echo(f"{event.event_id}  {event.type}  {local(event.added_at)}  {one_line(about)}")
        typer.echo(f"  {one_line(event.last_error)}")
    if len(found) > limit:
        typer.echo(f"There are more than {limit}; see them with --limit.", err=True)


@app.command()
def retry(
    tenant: Tenant,
    event_ids: Annotated[list[str] | None, typer.Argument(metavar="[EVENT]...", help="Their ids.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that were given up.")] = False,  # noqa: FBT002 - typer's way
    as_json: AsJson = False,  # noqa: FBT002 - typer's way
) -> None:
    """Publish events again at once, under the same ids."""
    if bool(event_ids) == every:
        raise typer.BadParameter("give the ids of events, or --all")

    async def retry_each(client: TimerClient) -> list[tuple[str, Outcome]]:
        wanted = event_ids or [event.event_id async for event in client.events.buried(tenant)]
        return [(event_id, await client.events.retry(tenant, event_id)) for event_id in wanted]

    ended = run(with_client(retry_each))
    if as_json:
        typer.echo(json.dumps([{"eventId": event_id, "outcome": outcome.name} for event_id, outcome in ended]))
    for event_id, outcome in [] if as_json else ended:
        typer.echo(f"{outcome.name}: {tenant}/{event_id}", err=outcome.name == "not_found")
    if any(outcome.name == "not_found" for _, outcome in ended):
        raise typer.Exit(1)


def _document(event: BuriedEvent) -> dict[str, object]:
    """Return an event's entry as on the wire."""
    return {
        "tenantId": event.tenant,
        "eventId": event.event_id,
        "eventType": event.type,
        "about": event.about,
        "addedAt": wire(event.added_at),
        "attempt": event.attempt,
        "lastError": event.last_error,
    }
