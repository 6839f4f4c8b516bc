"""How a command is found and started, and with which message it ends. test_shutdown.py has the end by a signal."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from timer_service import cli
from timer_service.cli.dev import own_command
from timer_service.client import CommandError, NoAnswerError, QueryError
from timer_service.core.values.errors import DatabaseUnavailableError, StartError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StartError("one\ntwo \x1b[2J\x07\u202e"), "timer-service: one\ntwo \\x1b[2J\\x07\\u202e"),
        (NoAnswerError("nobody answers"), "timer-service: nobody answers"),
        (DatabaseUnavailableError("it is away"), "timer-service: the database cannot be used: it is away"),
        (CommandError("BUSY", "later", []), "timer-service: BUSY: later"),
        (QueryError("BUSY", "later", []), "timer-service: BUSY: later"),
    ],
)
def test_exit_with_a_message(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    """A command that fails exits with 1 and says why. No text of a server acts on the terminal."""

    def create_app(_names: object) -> Callable[[], NoReturn]:
        def run() -> NoReturn:
            raise error

        return run

    monkeypatch.setattr(cli, "create_app", create_app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code: Any = ended.value.code
    assert code == text


def test_command_that_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command imports only its own module. Without a known command, all are there, for the help."""
    asked: list[list[str]] = []

    def create_app(names: list[str]) -> Callable[[], None]:
        asked.append(names)
        return lambda: None

    monkeypatch.setattr(cli, "create_app", create_app)
    for arguments in (["timers", "list"], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["timer-service", *arguments])
        cli.main()
    assert asked == [["timers"], [*cli.COMMANDS, *cli.GROUPS]]


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("/my folder/timer-service", "'/my folder/timer-service'"),
        ("/site/timer_service/__main__.py", f"{sys.executable} -m timer_service"),
    ],
)
def test_own_command(program: str, command: str) -> None:
    """The command that `dev` shows can be run in a shell, also after `python -m timer_service`."""
    assert own_command(program) == command
