"""`timer-service restore`."""

from pathlib import Path
from typing import Annotated

import typer

from timer_service.app.backup import restore as restore_backup
from timer_service.cli.database import database_config
from timer_service.cli.output.replay import replay_text
from timer_service.cli.parameters import read_past_instant
from timer_service.cli.process import run_async
from timer_service.logs import configure_logs

File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup. It is not changed.")]
Since = Annotated[
    int | None,
    typer.Option(
        parser=read_past_instant,
        metavar="INSTANT",
        help="Handle the commands again that the broker stored since this instant. Default: since an hour before the "
        "newest command in the backup.",
    ),
]
NoReplay = Annotated[bool, typer.Option("--no-replay", help="Do not handle commands again.")]


def restore(file: File, replay_since: Since = None, no_replay: NoReplay = False) -> None:
    """Replace the SQLite database by a backup. The service must be stopped. The old database is kept."""
    if replay_since is not None and no_replay:
        raise typer.BadParameter("Give either --replay-since or --no-replay.")
    config = database_config()
    configure_logs(config)
    done = run_async(restore_backup(config, file, since=replay_since, no_replay=no_replay))
    typer.echo(f"restored {config.db_path} from {file}")
    typer.echo(f"The old database is now {done.kept}." if done.kept else "There was no database before.")
    if done.replay_since is None:
        typer.echo("Commands that were handled after the backup are not handled again.")
    else:
        typer.echo(replay_text(done.replay_since))
    typer.echo("Start the service.")
