"""`timer-service tenants`. These commands use the broker only, never the database."""

import json

import typer

from timer_service.cli.connection import broker_command
from timer_service.cli.parameters import AsJson, Tenant
from timer_service.client import TimerClient

app = typer.Typer(help="Tenants: what they use of their limits.", no_args_is_help=True)


@broker_command(app)
async def usage(client: TimerClient, tenant: Tenant, as_json: AsJson = False) -> None:
    """Show what a tenant uses of its limits."""
    found = await client.query(tenant, "get-usage", {})
    if as_json:
        typer.echo(json.dumps(found))
        return
    rows = [(each["limit"], f"{each['used']:,}", _text(each.get("most"))) for each in found["usage"]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for limit, used, most in rows:
        typer.echo(f"{limit:<{widths[0]}}  {used:>{widths[1]}} of {most:>{widths[2]}}")


def _text(most: int | None) -> str:
    return "unlimited" if most is None else f"{most:,}"
