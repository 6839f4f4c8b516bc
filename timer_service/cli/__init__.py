"""The command `timer-service`: exit code 0 fine, 1 failed, 2 wrong usage."""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from timer_service.client.errors import TimerServiceError
from timer_service.core.errors import DatabaseUnavailableError, StartError

_COMMANDS = ("serve", "dev", "doctor")
_GROUPS = ("migrate", "timers", "signals", "runs", "events")


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
    app.callback()(_with_version)
    for name in names:
        part = import_module(f"timer_service.cli.{name}")
        if name in _GROUPS:
            app.add_typer(part.app, name=name)
        else:
            app.command(name)(getattr(part, name))
    return app


def _tell_version(asked: bool) -> None:  # noqa: FBT001 - typer's way
    if asked:
        typer.echo(f"timer-service {version('timer_service')}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Show the version and exit.")
]


def _with_version(_: _Version = False) -> None:  # noqa: FBT002 - typer's way
    """Durable timers: publish ScheduleTimer, receive DueTimeReached."""
