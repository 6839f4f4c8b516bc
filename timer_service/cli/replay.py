"""`timer-service replay`."""

from typing import Annotated

import typer

from timer_service.app.backup import request_replay_since
from timer_service.cli.database import database_config
from timer_service.cli.output.replay import replay_text
from timer_service.cli.parameters import read_past_instant
from timer_service.cli.process import run_async

Since = Annotated[
    int,
    typer.Option(
        parser=read_past_instant,
        metavar="INSTANT",
        help="Handle the commands again that the broker stored since this instant.",
    ),
]


def replay(since: Since) -> None:
    """Make the service handle commands again at its next start, for example after a restore of the database.

    On SQLite, stop the service first. On PostgreSQL, restart all instances afterwards.
    """
    config = database_config()
    run_async(request_replay_since(config, since))
    typer.echo(replay_text(since))
    typer.echo("Start the service." if config.postgres_url is None else "Restart all instances.")
