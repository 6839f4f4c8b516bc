"""`timer-service config show`: values, sources, and no secrets."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from timer_service.cli import create_app
from timer_service.cli.config import settings_of
from timer_service.client import lookup
from timer_service.config import load_config

pytestmark = pytest.mark.usefixtures("folder")

EXAMPLE = Path(__file__).parents[2] / ".env.example"
SECRETS = ("hunter2", "p@ss", "t0ken", "pw", "SUAB")


def show(*arguments: str) -> str:
    done = CliRunner().invoke(create_app(["config"]), ["config", "show", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_defaults_are_those_of_the_example() -> None:
    """Without settings, every setting has the value that .env.example names, and the source `default`."""
    example = dict(re.findall(r"^# (TIMER_\w+)=(.*)$", EXAMPLE.read_text("utf-8"), re.MULTILINE))
    settings = settings_of(load_config())
    assert {each.name: each.value or "" for each in settings} == {**example, "TIMER_DB_PATH": "event_service.db"}
    assert {each.source for each in settings} == {"default"}


def test_the_source_of_each_setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment wins over .env. An empty variable counts as not set."""
    (folder / ".env").write_text("TIMER_BATCH_SIZE=5\nTIMER_MAX_ATTEMPTS=6\nTIMER_RETENTION_DAYS=0.5\nTIMER_ROLE=\n")
    monkeypatch.setenv("TIMER_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("TIMER_HTTP_HOST", "")
    found = {each["name"]: (each["value"], each["source"]) for each in json.loads(show("--json"))["settings"]}
    expected = {
        "TIMER_BATCH_SIZE": ("5", ".env"),
        "TIMER_MAX_ATTEMPTS": ("7", "environment"),
        "TIMER_RETENTION_DAYS": ("0.5", ".env"),
        "TIMER_ROLE": ("all", "default"),
        "TIMER_HTTP_HOST": ("127.0.0.1", "default"),
        "TIMER_DATABASE_URL": (None, "default"),
    }
    assert {name: found[name] for name in expected} == expected
    monkeypatch.setenv("TIMER_BATCHSIZE", "5")
    assert "warning: unknown setting TIMER_BATCHSIZE; did you mean TIMER_BATCH_SIZE?" in show()


def test_the_broker_of_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker of commands is shown with the reason, without its login, or with the reason why there is none."""
    monkeypatch.setattr(lookup, "is_dev_server", lambda _url: False)  # one may run on this machine
    assert show().splitlines()[-2:] == [
        "",
        "Commands of this folder use the broker nats://localhost:4222 (the default).",
    ]
    (folder / ".timer-service").mkdir()
    assert "Commands of this folder use no broker: the `dev` of this folder (" in show()
    broker = json.loads(show("--json"))["broker"]
    assert (broker["url"], "is not running" in broker["reason"]) == (None, True)
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://kim:hunter2@a:4222")
    assert json.loads(show("--json"))["broker"] == {"url": "nats://a:4222", "reason": "TIMER_BROKER_URL"}


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("BROKER_URL", "nats://kim:p@ss@a:4222,tls://t0ken@b:4222", "nats://********@a:4222,tls://********@b:4222"),
        ("NATS_TOKEN", "t0ken", "********"),
        ("DATABASE_URL", "postgresql://kim:hunter2@h/db", "postgresql://kim:********@h/db"),
        ("NATS_TOKEN_FILE", "secret", "secret"),
        (
            "DATABASE_URL",
            "postgresql:///db?host=a,b&port=1,2&user=kim&password=hunter2",
            "postgresql:///db?host=a,b&port=1,2&user=kim&password=********",
        ),
        ("DATABASE_URL", "postgresql:///db?sslpassword=hunter2", "postgresql:///db?sslpassword=********"),
        ("DATABASE_URL_FILE", "url", "url"),
        ("LIMITS_FILE", "limits.toml", "limits.toml"),
    ],
)
def test_secrets_are_masked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, shown: str
) -> None:
    """Secrets are masked, also in URLs. Of a file with a secret, the path is shown."""
    (folder / "secret").write_text("hunter2")
    (folder / "url").write_text("postgresql://kim:hunter2@h/db")
    (folder / "limits.toml").write_text("[default]\npending_timers = 5\n")
    monkeypatch.setenv(f"TIMER_{setting}", value)
    for output in (show(), show("--json")):
        assert shown in output
        assert [secret for secret in SECRETS if secret in output.replace(shown, "")] == []
