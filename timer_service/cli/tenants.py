"""`timer-service tenants`. These commands use the broker only, never the database."""

import json
from typing import Annotated

import typer

from timer_service.cli.connection import Server, broker_command, client_config
from timer_service.cli.output import print_table
from timer_service.cli.parameters import AsJson, Tenant, read_tenant
from timer_service.cli.process import run_async
from timer_service.client import TimerClient
from timer_service.client.answers import read_rows
from timer_service.client.view import View

Tenants = Annotated[list[str], typer.Argument(parser=read_tenant, metavar="TENANT", help="Every tenant.")]
Readers = Annotated[list[str], typer.Argument(parser=read_tenant, metavar="TENANT", help="Readers of events.")]

app = typer.Typer(help="Tenants: what they use of their limits, and their streams.", no_args_is_help=True)


class _Usage(View):
    limit: str
    used: int
    most: int | None = None


@broker_command(app)
async def usage(client: TimerClient, tenant: Tenant, as_json: AsJson = False) -> None:
    """Show what a tenant uses of its limits."""
    found = await client.query(tenant, "get-usage", {})
    if as_json:
        typer.echo(json.dumps(found))
        return
    rows = [_Usage.read(each) for each in read_rows(found, "usage")]
    most = ["unlimited" if each.most is None else f"{each.most:,}" for each in rows]
    cells = [(each.limit, f"{each.used:,}", limit) for each, limit in zip(rows, most, strict=True)]
    print_table(("LIMIT", "USED", "MOST"), cells, {})


@app.command()
def separate(tenants: Tenants, server: Server = None) -> None:
    """Give each tenant a stream of its own for its commands, with the login of the operator.

    Then a flood of commands of one tenant does not delay the others. A tenant without such a stream can publish no
    command afterwards. Run it again for new tenants.
    """
    from timer_service.cli.tenant_streams import as_operator, separate_tenants  # noqa: PLC0415 - `usage` needs no adapter

    new = run_async(as_operator(client_config(server), separate_tenants, tenants))
    if new:
        typer.echo("Tenants without a stream can publish no command. Name every tenant.", err=True)
    for tenant in tenants:
        typer.echo(f"{tenant}: {'has a new stream' if tenant in new else 'had its stream already'}")


@app.command()
def events(tenants: Readers, server: Server = None) -> None:
    """Let tenants read their events from streams of their own, with the login of the operator.

    Each stream takes the events of its tenant from the stream of events, and keeps each one until it is acknowledged.
    """
    from timer_service.cli.tenant_streams import as_operator, stream_events  # noqa: PLC0415 - `usage` needs no adapter

    streams = run_async(as_operator(client_config(server), stream_events, tenants))
    for tenant, stream in streams.items():
        typer.echo(f"{tenant}: reads the stream {stream} with the consumer {tenant}")
