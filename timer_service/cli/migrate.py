"""`timer-service migrate`: the schema of the database."""

import sqlite3
from collections.abc import Iterable

import typer

from timer_service.adapters.migrations import Migration, find_pending
from timer_service.app.schema import apply_migrations, migrations, unapplied_migrations
from timer_service.cli.connection import database_config
from timer_service.cli.doctor.database import read_applied
from timer_service.cli.process import run_async
from timer_service.config import Config, load_config
from timer_service.core.values.errors import StartError
from timer_service.logs import configure_logs

app = typer.Typer(help="The schema of the database: show it, bring it to this version.", no_args_is_help=True)


@app.command()
def up() -> None:
    """Apply the pending migrations."""
    config = load_config()
    configure_logs(config)
    applied = run_async(apply_migrations(config))
    _print("applied", applied)
    if not applied:
        typer.echo("nothing to apply")


@app.command()
def status() -> None:
    """List the migrations with their states. Changes nothing; the service may be running."""
    pending = {each.number for each in _read_pending(database_config())}
    for migration in migrations():
        _print("pending" if migration.number in pending else "applied", [migration])


@app.command()
def check() -> None:
    """Exit with 1 if a migration is pending. Changes nothing; the service may be running."""
    pending = _read_pending(database_config())
    _print("pending", pending)
    raise typer.Exit(1 if pending else 0)


def _read_pending(config: Config) -> list[Migration]:
    """Return the pending migrations. Raises `StartError` if this version cannot work with the database.

    A SQLite file is read without its lock, and is not created.
    """
    if config.engine == "postgres":
        return run_async(unapplied_migrations(config))
    try:
        applied = read_applied(config.db_path) if config.db_path.exists() else {}
    except sqlite3.Error as error:
        raise StartError(f"cannot read {config.db_path}: {error}. Check TIMER_DB_PATH.") from error
    return find_pending(applied, migrations())


def _print(state: str, listed: Iterable[Migration]) -> None:
    for migration in listed:
        typer.echo(f"{state}  {migration.name}")
