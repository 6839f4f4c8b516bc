"""The command `timer-service`: exit code 0 fine, 1 failed, 2 wrong usage."""

import sys

import typer

from timer_service.cli import dev, doctor, migrate, serve, signals, timers
from timer_service.client import TimerServiceError
from timer_service.core.errors import DatabaseUnavailableError, StartError

app = typer.Typer(
    name="timer-service",
    help="Durable timers: publish ScheduleTimer, receive DueTimeReached.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("dev")(dev.dev)
app.command("doctor")(doctor.doctor)
app.add_typer(migrate.app, name="migrate")
app.add_typer(timers.app, name="timers")
app.add_typer(signals.app, name="signals")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except (StartError, TimerServiceError) as error:
        sys.exit(f"timer-service: {error}")
    except DatabaseUnavailableError as error:
        sys.exit(f"timer-service: the database can't be used: {error}")
