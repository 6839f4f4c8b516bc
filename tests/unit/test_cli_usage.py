"""Wrong usage of the command line: exit code 2 and a message that names the option or argument. No broker is needed."""

import re
import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner, Result

from tests.harness.cases import case
from timer_service import __version__
from timer_service.cli import COMMANDS, GROUPS, create_app
from timer_service.cli.parameters import read_duration, read_instant
from timer_service.client import lookup

NAMES = [*COMMANDS, *GROUPS]

USAGE = {
    "backup": "Missing argument 'FILE'",
    "dead-letters list a.b": "Invalid value for 'TENANT': 'a.b' must be 1 to 64 letters",
    "dead-letters show acme 0": "Invalid value for 'SEQUENCE': must be greater than or equal to 1",
    "timers import acme missing.jsonl": "Invalid value for 'FILE': cannot read 'missing.jsonl': No such file",
    "timers import acme /dev/null": "Invalid value for 'FILE': '/dev/null' must be a file: it is read twice",
    "events retry acme": "Give the ids of events, or --all",
    "events resubmit acme orders": "Give the ids of events, or --all",
    "events drop acme orders event-1 --all": "Give the ids of events, or --all",
    "events parked acme --consumer a.b": "Invalid value for '--consumer': 'a.b' must be 1 to 64 letters",
    "events show acme a.b event-1": "Invalid value for 'CONSUMER': 'a.b' must be 1 to 64 letters",
    "events retry acme event-1 --all": "Give the ids of events, or --all",
    "listen acme": "Missing option '--exec'",
    "listen acme --exec nothing-like-this": "'nothing-like-this': there is no program 'nothing-like-this'",
    "listen acme --exec true' --topic x": "No closing quotation",
    "listen acme --exec true --event fired": "'fired' is not one of 'due-time-reached', 'timer-expired'",
    "listen acme --exec true --event run-completed --topic x": "topic must be left out for RunCompleted",
    "listen acme a.b --exec true": "Invalid value for 'NAME': 'a.b' must be 1 to 64 letters",
    "runs list acme --status done": "Invalid value for '--status': 'done' is not one of 'running'",
    "runs start acme push-1 missing.json": "Invalid value for 'FILE': cannot read 'missing.json': No such file",
    "runs start acme a job.json": "'job.json' has the unknown field 'job'; the fields are: jobs and groups",
    "runs start acme a jobs.json": "'jobs.json' must have a list 'jobs'",
    "runs resolve acme a tests groups.json": "The jobs of a group have no groups of their own",
    "runs start acme a empty.json": "'empty.json' must have a list 'jobs'",
    "runs start acme a -": "Invalid value for 'FILE': must be JSON",
    "runs start acme a deep.json": "must be JSON with less nesting",
    "runs report acme push-1 lint success --outputs [1]": "Invalid value for '--outputs': must be a JSON object",
    "schedules preview acme": "Give one of --cron, --every and --calendar",
    "schedules preview acme --every 1h --count 101": "Invalid value for '--count': must be less than or equal to 100",
    "schedules put acme daily": "Give one of --cron, --every and --calendar",
    "schedules put acme daily --every 1d --catch-up newest": "Invalid value for '--catch-up': 'newest' is not one of",
    "schedules put acme daily --every 1d --zone UTC": "--zone needs --cron or --calendar: --every is elapsed",
    "schedules preview acme --calendar 2weeks": "(a year is 12), and the first slot as the clocks of",
    "schedules put acme daily --every 1d --input 1": "--input, --queue, --deadline-in, --key, --limit and",
    "schedules put acme daily --every 1d --start order --data 1": "--data cannot be combined with --start: use --input",
    "schedules put acme daily --every 1d --start order --topic a": "--topic cannot be combined with --start",
    "timers schedule acme call-1 --at 2026-03-01": "without an offset, it may be in any time zone",
    "timers schedule acme call-1 --in 5s --topic A": "Invalid value for '--topic': 'A' must be 1 to 64 lower-case",
    "schedules put acme daily --every P1M": "Invalid value for '--every': 'P1M' must be a duration, such as 10s",
    "schedules put acme daily --every 1month": "PT1H30M. Months have no fixed length: use --calendar.",
    "schedules put acme daily --every 1.0005s": "Invalid value for '--every': '1.0005s' must be whole milliseconds",
    "schedules put acme daily --every 1h1h": "Invalid value for '--every': '1h1h' must be a duration, such as 10s",
    "signals create acme help": "Give either --on (with --item) or --at",
    "signals create acme help --on blocked": "--on needs --item",
    "worker acme orders": "Invalid value for 'MODULE:WORKFLOW': 'orders' must be module:workflow",
    "worker acme nothing:order": "'nothing:order': there is no module 'nothing' in ",
    "worker acme json:dumps": "'json:dumps': dumps is not a function with the decorator @workflow",
    "workflows retry acme": "Give the ids of workflows, or --failed",
    "workflows retry acme order-1 --prefix order": "Give --prefix with --failed",
    "workflows start acme order-1 order --in 5s --at 2100-01-01T00:00:00Z": "Give either --in or --at",
    "timers schedule acme call-1 --in 5s --at 2100-01-01T00:00:00Z": "Give either --at or --in",
    "timers schedule acme call-1 --in 10000000d": "'10000000d' is too long: give at most 366 days",
    "timers schedule acme call-1 --in 5s --expires-at 2100-01-01T00:00:00Z": "Give --expires-at with --at",
    "timers cancel acme call-1 --prefix call": "Give either TIMER or --prefix",
    "timers schedule acme call-1 --in 5s --data {": "Invalid value for '--data': must be JSON",
    "timers list acme --due-after 2100-01-01T00:00:00": "Invalid value for '--due-after'",
    "timers watch a.b": "'a.b' must be 1 to 64 letters",
    "timers list acme --limit many": "Invalid value for '--limit': must be a valid integer",
    "timers cancel acme ": "Invalid value for 'TIMER': '' must be 1 to 200 characters",
    "timers list acme --server http://host": "Invalid value for '--server': must be nats://host:port",
}
FILES = {
    "empty": "{}",
    "job": '{"job": []}',
    "jobs": '{"jobs": null}',
    "groups": '{"jobs": [], "groups": []}',
    "deep": "[" * 100_000,
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # `worker` adds its folder
    for name in ("TIMER_BROKER_URL", "TIMER_DB_PATH", "TIMER_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lookup, "is_dev_server", lambda _url: False)  # one may run on this machine
    return tmp_path


@cache
def all_commands() -> Typer:
    """Return the whole command line. Making it takes as long as running it."""
    return create_app(NAMES)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(all_commands(), arguments, env={"COLUMNS": "200"}, terminal_width=200)


def test_wrong_usage(empty_folder: Path) -> None:
    """Wrong usage ends with 2 and names the option, argument or field, before a connection is made."""
    for name, content in FILES.items():
        (empty_folder / f"{name}.json").write_text(content)
    for arguments, reason in USAGE.items():
        with case(arguments):
            result = run(*arguments.split(" "))
            assert result.exit_code == 2
            assert reason in " ".join(result.stderr.replace("│", " ").split())
            assert "Usage:" in result.stderr


def test_version() -> None:
    """--version prints the version of the package."""
    assert run("--version").stdout == f"timer-service {__version__}\n"


def test_values_of_an_option() -> None:
    """The help of an option with fixed values has a short name for them, and lists them whole."""
    text = " ".join(run("timers", "list", "--help").stdout.replace("│", " ").split())
    assert "--state WORD Only timers in this state. One of: scheduled, reached, expired, cancelled, failed." in text


def test_unreachable_broker() -> None:
    """The message has the URL, without the password, and the remedy."""
    result = run("timers", "get", "acme", "call-1", "--server", "nats://user:secret@127.0.0.1:1")
    assert result.exit_code == 1
    message = str(result.exception)
    assert message.startswith("cannot connect to the broker at nats://127.0.0.1:1: ")
    assert "--server or TIMER_BROKER_URL" in message


@pytest.mark.parametrize(("command", "code"), [("status", 0), ("check", 1)])
def test_migrate_reads_only(command: str, code: int, empty_folder: Path) -> None:
    """`status` and `check` list the pending migrations of a missing database and create no file."""
    result = run("migrate", command)
    assert result.exit_code == code
    assert result.stdout.startswith("pending  0001_")
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1w1d", timedelta(days=8)),
        ("1h30m", timedelta(minutes=90)),
        ("PT1H30M", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("366d", timedelta(days=366)),
    ],
)
def test_durations(text: str, duration: timedelta) -> None:
    """A duration has the units from milliseconds to weeks, or is ISO 8601."""
    assert read_duration(text) == duration


def test_instant_in_the_far_future() -> None:
    """An instant keeps its milliseconds."""
    assert read_instant("9999-12-31T23:59:59.999Z") == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)


def test_every_command_is_documented() -> None:
    """docs/cli.md names every command and every group."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    app = get_command(create_app(NAMES))
    assert isinstance(app, TyperGroup)
    table = "".join(re.findall(r"^\| `.*$", page, re.MULTILINE))
    assert [name for name in app.commands if not re.search(rf"`{name}( \w+)?`", table)] == []


def test_completion() -> None:
    """The shell completes commands, options and their values."""
    for words, number, expected in (
        ("timer-service dead", 1, "dead-letters"),
        ("timer-service timers imp", 2, "import"),
        ("timer-service timers list acme --state F", 5, "Failed"),
    ):
        environment = {"_TIMER_SERVICE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        done = CliRunner().invoke(create_app(NAMES), [], prog_name="timer-service", env=environment)
        assert done.stdout.split() == [expected]
