"""`timer-service events`. These commands use the broker only, never the database."""

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated

import typer

from timer_service.cli.connection import add_command, broker_command
from timer_service.cli.many import send_each
from timer_service.cli.output import format_time, one_line, print_value
from timer_service.cli.parameters import AsJson, Tenant, identifier, option, read_identifier, read_tenant
from timer_service.cli.resources import Resource, Rows
from timer_service.client import BuriedEvent, Outcome, ParkedEvent, TimerClient

app = typer.Typer(
    help="Events that were given up: buried ones could not be published, parked ones could not be handled.",
    no_args_is_help=True,
)


# The name of a consumer has the form of a tenant.
Consumer = Annotated[
    str, typer.Argument(parser=read_tenant, metavar="CONSUMER", help="The consumer, as the list shows it.")
]
Events = Annotated[
    list[str] | None,
    typer.Argument(parser=read_identifier, metavar="EVENT", help="The ids of the events.", show_default=False),
]
EveryBuried = Annotated[bool, typer.Option("--all", help="All buried events of the tenant.")]
EveryParked = Annotated[bool, typer.Option("--all", help="All parked events of the consumer.")]


def _about(event: BuriedEvent | ParkedEvent) -> str:
    return " ".join(f"{name}={text}" for name, text in event.about.items())


EVENTS = Rows(
    query="list-buried-events",
    field="events",
    noun="buried events",
    view=BuriedEvent,
    head=("EVENT", "TYPE", "STORED", "ABOUT", "LAST ERROR"),
    row=lambda event, _: (event.event_id, event.type, format_time(event.added_at), _about(event), event.last_error),
)
PARKED = Rows(
    query="list-parked-events",
    field="events",
    noun="parked events",
    view=ParkedEvent,
    head=("CONSUMER", "EVENT", "TYPE", "PARKED", "ABOUT", "REASON"),
    row=lambda event, _: (
        *(event.consumer, event.event_id, event.type, format_time(event.parked_at), _about(event)),
        event.reason,
    ),
)


def print_parked(event: ParkedEvent) -> None:
    """Print a parked event: its fields, and the whole event as JSON."""
    print_value(event, f"{event.tenant}/{event.consumer}/{event.event_id}", leave_out=["consumer", "about", "event"])
    typer.echo(one_line(json.dumps(event.event, ensure_ascii=False)))


RESOURCE = Resource(app, lambda client: client.events, key_length=3)
RESOURCE.list(EVENTS, "List buried events, oldest first.")
RESOURCE.list(
    PARKED,
    "List parked events, oldest first.",
    {"consumer": option("CONSUMER", "Only the events of this consumer.", parser=read_tenant)},
    name="parked",
)
RESOURCE.get(
    "Show a parked event: the reason, and the whole event.",
    print_parked,
    {
        "consumer": Consumer,
        "event_id": identifier("EVENT", "The id of the event."),
    },
    name="show",
    call=lambda client, **given: client.events.get_parked(**given),
)


def _check_ids(*, event_ids: list[str] | None, every: bool, **_: object) -> None:
    if bool(event_ids) == every:
        raise typer.BadParameter("Give the ids of events, or --all.")


@broker_command(app, check=_check_ids)
async def retry(
    client: TimerClient, tenant: Tenant, event_ids: Events = None, every: EveryBuried = False, as_json: AsJson = False
) -> None:
    """Publish buried events again, under the same ids."""
    wanted = [event.event_id async for event in client.events.buried(tenant)] if every else event_ids or []
    await _send(partial(client.events.retry, tenant), wanted, tenant, EVENTS.noun, as_json=as_json)


async def _send(
    send: Callable[[str], Awaitable[Outcome]], event_ids: Sequence[str], owner: str, noun: str | None, *, as_json: bool
) -> None:
    """Send a command about each event. With `--all` there may be none."""
    if not event_ids and not as_json:
        typer.echo(f"no {noun}", err=True)
        return
    await send_each(send, event_ids, "eventId", f"{owner}/", as_json=as_json, without_effect=["not_found"])


async def _send_about_parked(
    method: str,
    client: TimerClient,
    tenant: str,
    consumer: str,
    event_ids: list[str] | None,
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Call a method of the client for the events that were given, or for all that a consumer has parked."""
    wanted = [event.event_id async for event in client.events.parked(tenant, consumer)] if every else event_ids or []
    send = partial(getattr(client.events, method), tenant, consumer)
    await _send(send, wanted, f"{tenant}/{consumer}", PARKED.noun, as_json=as_json)


_ABOUT_PARKED = {"tenant": Tenant, "consumer": Consumer, "event_ids": Events, "every": EveryParked, "as_json": AsJson}
for _name, _text in {
    "resubmit": "Publish parked events again, to their consumer only.",
    "drop": "Delete parked events: their consumer will not get them again.",
}.items():
    add_command(app, _name, _text, partial(_send_about_parked, _name), _ABOUT_PARKED, check=_check_ids)
