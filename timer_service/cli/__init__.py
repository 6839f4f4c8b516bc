"""The command `timer-service`. Exit codes: 0 success, 1 failure or no effect, 2 wrong usage."""

import errno
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError:
    sys.exit("timer-service: the command line is not installed; run `pip install 'timer-service[server]'`")

from timer_service import __version__
from timer_service.cli.output import one_line
from timer_service.client import CommandError, QueryError, TimerServiceError
from timer_service.core.values.codec import plain_words
from timer_service.core.values.errors import DatabaseUnavailableError, StartError

COMMANDS = ("serve", "dev", "worker", "listen", "doctor", "healthcheck", "backup", "restore")
"""The commands that are not in a group."""
GROUPS = (
    "config",
    "migrate",
    "timers",
    "signals",
    "schedules",
    "runs",
    "workflows",
    "events",
    "dead-letters",
    "tenants",
)
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):  # an id may have characters that the terminal's encoding lacks
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    names = [name for name in sys.argv[1:2] if name in {*COMMANDS, *GROUPS}]
    try:
        create_app(names or [*COMMANDS, *GROUPS])()
    except (CommandError, QueryError) as error:
        from timer_service.cli.resources import rejection_text  # noqa: PLC0415 - most commands do not need it

        sys.exit(f"timer-service: {rejection_text(error)}")
    except (StartError, TimerServiceError) as error:
        sys.exit(f"timer-service: {_visible(error)}")
    except DatabaseUnavailableError as error:
        sys.exit(f"timer-service: the database cannot be used: {_visible(error)}")
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        # Python writes the rest at its end, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"timer-service: the output cannot be written: {error.strerror}")


def _visible(error: Exception) -> str:
    """Return the lines of an error. It can quote a server, whose characters must not act on the terminal."""
    return "\n".join(map(one_line, str(error).split("\n")))


class _PlainGroup(TyperGroup):
    """A group of commands. It rewords usage errors that come from the validation library."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = plain_words(error.message)
            raise


def create_app(names: Iterable[str]) -> typer.Typer:
    """Return the app with these commands only: a short command spends most of its time importing."""
    app = typer.Typer(
        name="timer-service",
        cls=_PlainGroup,
        help="Durable timers: publish ScheduleTimer, receive DueTimeReached.",
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in names:
        module = import_module(f"timer_service.cli.{'backup' if name == 'restore' else name.replace('-', '_')}")
        if name in GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"timer-service {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
]


def _root(_: _Version = False) -> None:
    """Durable timers: publish ScheduleTimer, receive DueTimeReached."""
