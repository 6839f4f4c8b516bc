"""How a command is found and started, and with which message it ends. test_shutdown.py has the end by a signal."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import AsyncMock, MagicMock

import pytest
from typer.testing import CliRunner

from timer_service import cli
from timer_service.cli import connection
from timer_service.cli.dev import own_command
from timer_service.cli.serve import serve
from timer_service.client import CommandError, NoAnswerError, QueryError
from timer_service.core.values.errors import DatabaseUnavailableError, StartError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StartError("one\ntwo \x1b[2J\x07\n\u202e"), "timer-service: one\ntwo \\x1b[2J\\x07\n\\u202e"),
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "config show"])
def test_full_disk(tmp_path: Path, arguments: str, unbuffered: str) -> None:
    """If its output cannot be written, a command ends with 1 and says why in one line."""
    command = [sys.executable, "-m", "timer_service", *arguments.split()]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, text=True, check=False
        )
    text = "timer-service: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, text)


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", r"\u043a\u043b\u044e\u0447.db"), ("utf-8", "ключ.db")])
def test_characters_that_the_output_lacks(tmp_path: Path, encoding: str, shown: str) -> None:
    """Characters that the encoding of the output lacks are escaped."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "TIMER_DB_PATH": "ключ.db"}
    command = [sys.executable, "-m", "timer_service", "config", "show"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment, check=True)
    assert shown in done.stdout.decode(encoding)


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


SETTINGS = {
    "TIMER_BROKER_URL": "nats://one:1",
    "TIMER_SUBJECT_PREFIX": "acme.x",
    "TIMER_REPLY_PREFIX": "_REPLY.",
    "TIMER_NATS_TOKEN": "t0ken",
}
OPTIONS = {"subject_prefix": "acme.x", "inbox_prefix": "_REPLY"}


async def test_settings_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command connects as the settings say."""
    connect = MagicMock()
    monkeypatch.setattr("timer_service.cli.connection.TimerClient.connect", connect)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    async with connection.open_client(connection.find_target(None)):
        options = dict(connect.call_args.kwargs)
        assert (connect.call_args.args, options | OPTIONS) == (("nats://one:1",), options)
        assert options["login"]() == {"token": "t0ken"}


@pytest.mark.parametrize(
    ("options", "sizes", "count"),
    [("--limit 1500", [1000, 500], 1500), ("--limit 1000 --all", [1000, 1000, 1000], 2500), ("", [50], 50)],
)
def test_pages_of_a_list(monkeypatch: pytest.MonkeyPatch, options: str, sizes: list[int], count: int) -> None:
    """A list is read in pages of at most 1,000 rows, up to its limit, or to its end with --all."""
    asked: list[int] = []

    async def query(_tenant: str, _name: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.append(wanted["limit"])
        first, last = int(wanted.get("cursor", 0)), int(wanted.get("cursor", 0)) + wanted["limit"]
        return {"timers": [{}] * (min(last, 2500) - first), **({"cursor": str(last)} if last < 2500 else {})}

    connect = MagicMock()
    connect.return_value.__aenter__.return_value = MagicMock(query=query)
    monkeypatch.setattr("timer_service.cli.connection.TimerClient.connect", connect)
    line = ["timers", "list", "acme", "--json", *options.split()]
    done = CliRunner().invoke(cli.create_app(["timers"]), line, env=SETTINGS)
    assert (len(json.loads(done.stdout)), asked) == (count, sizes)


def test_client_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that the client refuses is wrong usage. Without a tenant, the events of all tenants are watched.

    If no answer comes, the error names the broker, without the login.
    """
    connect, client = MagicMock(), MagicMock(**{"timers.cancel": AsyncMock(side_effect=ValueError("no such form"))})
    connect.return_value.__aenter__.return_value = client
    monkeypatch.setattr("timer_service.cli.connection.TimerClient.connect", connect)
    assert CliRunner().invoke(cli.create_app(["timers"]), ["timers", "watch"], env=SETTINGS).exit_code == 0
    client.timers.watch.assert_called_once_with("*")
    refused = CliRunner().invoke(cli.create_app(["timers"]), ["timers", "cancel", "acme", "call-1"], env=SETTINGS)
    assert (refused.exit_code, "no such form" in refused.stderr) == (2, True)
    client.timers.cancel.side_effect = NoAnswerError("no answer")
    url = {**SETTINGS, "TIMER_NATS_TOKEN": "", "TIMER_BROKER_URL": "nats://kim:s3cret@one:1"}
    silent = CliRunner().invoke(cli.create_app(["timers"]), ["timers", "cancel", "acme", "call-1"], env=url)
    assert str(silent.exception) == "no answer (broker: nats://one:1)"


def test_unknown_settings_of_a_service(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A service logs a warning for a setting that it does not know."""
    monkeypatch.setattr("timer_service.cli.serve.configure_logs", MagicMock())
    monkeypatch.setattr("timer_service.cli.serve.run_async", lambda main: main.close())
    monkeypatch.setenv("TIMER_BATCHSIZE", "5")
    serve()
    expected = (logging.WARNING, "unknown setting TIMER_BATCHSIZE; did you mean TIMER_BATCH_SIZE?")
    assert expected in [(each.levelno, each.message) for each in caplog.records]


def test_settings_of_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker executes as its options say, and connects as the settings say."""
    worker = MagicMock(return_value=MagicMock(run=AsyncMock()))
    for name, value in {"Worker": worker, "configure_logs": MagicMock(), "collect_rarely": MagicMock()}.items():
        monkeypatch.setattr(f"timer_service.cli.worker.{name}", value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds its folder
    text = 'from timer_service.worker import workflow\n@workflow("order")\nasync def order(ctx, _): ...\n'
    (tmp_path / "orders_of_a_test.py").write_text(text)
    line = "worker acme orders_of_a_test:order --queue mail --slots 7 --name kim --lease 90s"
    assert CliRunner().invoke(cli.create_app(["worker"]), line.split(), env=SETTINGS).exit_code == 0
    options = dict(worker.call_args.kwargs)
    wanted = {"tenant": "acme", "queue": "mail", "slots": 7, "name": "kim", "lease": timedelta(seconds=90)}
    assert (worker.call_args.args, options | wanted | OPTIONS) == (("nats://one:1",), options)
    assert options["login"]() == {"token": "t0ken"}
    assert [each.type for each in options["workflows"]] == ["order"]


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
