"""`timer-service replay`."""

from typing import Annotated

import typer

from timer_service.app.backup import replay as request_replay
from timer_service.cli.database import database_config
from timer_service.cli.output.replay import replay_text
from timer_service.cli.parameters import read_past_instant
from timer_service.cli.process import run_async
from timer_service.logs import configure_logs

Since = Annotated[
    int | None,
    typer.Option(
        parser=read_past_instant,
        metavar="INSTANT",
        help="Handle the commands that the broker stored since this instant. Default: since an hour before the newest "
        "command that the database has handled.",
    ),
]


def replay(since: Since = None) -> None:
    """Make the service handle commands again at its next start, for example after a restore of the database.

    On SQLite, stop the service first. On PostgreSQL, restart all instances afterwards.
    """
    config = database_config()
    configure_logs(config)
    typer.echo(replay_text(run_async(request_replay(config, since))))
    typer.echo("Start the service." if config.postgres_url is None else "Restart all instances.")
