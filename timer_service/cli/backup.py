"""`timer-service backup` and `restore`."""

from pathlib import Path
from typing import Annotated

import typer

from timer_service.app.backup import back_up
from timer_service.app.backup import restore as restore_backup
from timer_service.cli.connection import database_config
from timer_service.cli.process import run_async
from timer_service.logs import configure_logs

NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="The new file. It must not exist.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup. It is not changed.")]


def backup(file: NewFile) -> None:
    """Write a backup of the SQLite database to a new file. The service may be running."""
    config = database_config()
    done = run_async(back_up(config, file))
    size, seconds = f"{done.size / 2**20:,.1f} MiB", done.duration.total_seconds()
    typer.echo(f"wrote {file}: {size} from {config.db_path} in {seconds:.1f} s")
    typer.echo("The backup was checked and is whole. `timer-service restore` restores it.")


def restore(file: File) -> None:
    """Replace the SQLite database by a backup. The service must be stopped. The old database is kept.

    The next start handles the commands that were stored since the backup.
    """
    config = database_config()
    configure_logs(config)
    kept = run_async(restore_backup(config, file))
    typer.echo(f"restored {config.db_path} from {file}")
    typer.echo(f"The old database is now {kept}." if kept else "There was no database before.")
    typer.echo("Start the service. It handles the commands that the broker has stored since the backup.")
