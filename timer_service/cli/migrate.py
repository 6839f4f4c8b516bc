"""`timer-service migrate`: the schema of the database."""

from collections.abc import Sequence

import typer

from timer_service.adapters.migrations import Migration
from timer_service.app.schema import apply_migrations, migrations, unapplied_migrations
from timer_service.cli.running import run
from timer_service.config import load_config

app = typer.Typer(help="Bring the database's schema to this version.", no_args_is_help=True)


@app.command()
def up() -> None:
    """Apply what is pending."""
    applied = run(apply_migrations(load_config()))
    _print("applied", applied)
    if not applied:
        typer.echo("nothing to apply")


@app.command()
def status() -> None:
    """List every migration and whether it is applied."""
    pending = run(unapplied_migrations(load_config()))
    shipped = migrations(load_config().engine)
    _print("applied", [each for each in shipped if each not in pending])
    _print("pending", pending)


@app.command()
def check() -> None:
    """Exit with 1 when something is pending."""
    pending = run(unapplied_migrations(load_config()))
    _print("pending", pending)
    raise typer.Exit(1 if pending else 0)


def _print(state: str, listed: Sequence[Migration]) -> None:
    for each in listed:
        typer.echo(f"{state}  {each.name}")
