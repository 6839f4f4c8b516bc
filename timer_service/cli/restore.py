"""`timer-service restore`."""

from pathlib import Path
from typing import Annotated

import typer

from timer_service.app.backup import restore as restore_backup
from timer_service.cli.database import database_config
from timer_service.cli.process import run_async
from timer_service.logs import configure_logs

File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup. It is not changed.")]


def restore(file: File) -> None:
    """Replace the SQLite database by a backup. The service must be stopped. The old database is kept.

    The next start handles the commands that were stored since the backup.
    """
    config = database_config()
    configure_logs(config)
    done = run_async(restore_backup(config, file))
    typer.echo(f"restored {config.db_path} from {file}")
    typer.echo(f"The old database is now {done.kept}." if done.kept else "There was no database before.")
    typer.echo("Start the service. It handles the commands that the broker has stored since the backup.")
