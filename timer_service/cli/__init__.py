"""The command `timer-service`: exit code 0 fine, 1 failed, 2 wrong usage."""

import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from timer_service.client.errors import TimerServiceError
from timer_service.core.errors import DatabaseUnavailableError, StartError

_COMMANDS = ("serve", "dev", "doctor")
_GROUPS = ("migrate", "timers", "signals", "runs")


def main() -> None:
    """Run the command line."""
    asked = [name for name in sys.argv[1:2] if name in {*_COMMANDS, *_GROUPS}]
    try:
        _app(asked or [*_COMMANDS, *_GROUPS])()
    except (StartError, TimerServiceError) as error:
        sys.exit(f"timer-service: {error}")
    except DatabaseUnavailableError as error:
        sys.exit(f"timer-service: the database can't be used: {error}")


def _app(names: Iterable[str]) -> typer.Typer:
    """Import no more than is asked for: most of what a short command takes is importing."""
    app = typer.Typer(
        name="timer-service",
        help="Durable timers: publish ScheduleTimer, receive DueTimeReached.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_several_commands)
    for name in names:
        part = import_module(f"timer_service.cli.{name}")
        if name in _GROUPS:
            app.add_typer(part.app, name=name)
        else:
            app.command(name)(getattr(part, name))
    return app


def _several_commands() -> None:
    """Durable timers: publish ScheduleTimer, receive DueTimeReached."""
