"""`timer-service backup`."""

from pathlib import Path
from typing import Annotated

import typer

from timer_service.app.backup import back_up
from timer_service.cli.database import database_config
from timer_service.cli.output.text import format_size
from timer_service.cli.process import run_async

File = Annotated[Path, typer.Argument(metavar="FILE", help="The new file. It must not exist.")]


def backup(file: File) -> None:
    """Write a backup of the SQLite database to a new file. The service may be running."""
    config = database_config()
    done = run_async(back_up(config, file))
    typer.echo(f"wrote {file}: {format_size(done.size)} from {config.db_path} in {done.duration.total_seconds():.1f} s")
    typer.echo("The backup was checked and is whole. `timer-service restore` restores it.")
