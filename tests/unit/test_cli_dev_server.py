"""How commands find the running `timer-service dev` of their folder."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timer_service.cli.connection import client_config
from timer_service.cli.dev_server import announce_dev_server, database_config, find_dev_server
from timer_service.client.connection import url_without_login
from timer_service.config import load_config

FILE = Path(".timer-service/dev.json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIMER_BROKER_URL", raising=False)
    FILE.parent.mkdir()


@pytest.fixture
def broker_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"


def write(pid: int, url: str) -> None:
    pages = {"httpHost": "127.0.0.1", "httpPort": 9464}
    FILE.write_text(json.dumps({"pid": pid, "brokerUrl": url, "database": "timers.db", **pages}))


def test_running_dev(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command uses the broker of the running `dev`, unless --server or TIMER_BROKER_URL names another one."""
    write(os.getppid(), broker_url)
    monkeypatch.setenv("TIMER_DATABASE_URL", "postgresql://h/d")
    config = client_config(None)
    assert (config.broker_url, config.postgres_url) == (broker_url, None)
    assert client_config("nats://other:4222").broker_url == "nats://other:4222"
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://named:4222")
    assert client_config(None).broker_url == "nats://named:4222"


@pytest.mark.parametrize("name", ["DB_PATH", "DATABASE_URL", "DATABASE_URL_FILE"])
def test_database_that_is_named(broker_url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A command that needs the database uses that of the running `dev`, unless a setting names one."""
    write(os.getppid(), broker_url)
    assert database_config().db_path == Path("timers.db")
    Path("url").write_text("postgresql://h/d")
    monkeypatch.setenv(f"TIMER_{name}", "postgresql://h/d" if name == "DATABASE_URL" else "url")
    assert database_config() == load_config()


def test_dev_that_is_gone(broker_url: str) -> None:
    """The file of a killed `dev` is ignored, also if its pid is that of this process, or its broker is away."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid, url in ((gone.pid, broker_url), (os.getpid(), broker_url), (os.getppid(), "nats://127.0.0.1:1")):
        write(pid, url)
        assert find_dev_server() is None
    assert client_config(None).broker_url == "nats://localhost:4222"


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '{"pid": "x", "brokerUrl": 1}', '{"pid": 1, "brokerUrl": "nats://[x", "database": "d"}']
)
def test_unreadable_file(text: str) -> None:
    """A file that is not one of `dev` is ignored."""
    FILE.write_text(text)
    assert find_dev_server() is None


def test_announcing(broker_url: str) -> None:
    """The file is for the owner only. It names what other commands need, and is removed at the end."""
    config = load_config(broker_url=broker_url, db_path=Path("timers.db"), http_port=9465)
    with announce_dev_server(FILE.parent, config):
        content = json.loads(FILE.read_text())
        assert FILE.stat().st_mode & 0o777 == 0o600
    assert (content["pid"], content["brokerUrl"], content["httpPort"]) == (os.getpid(), broker_url, 9465)
    assert content["database"] == str(Path("timers.db").absolute())
    assert not FILE.exists()


def test_foreign_file(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that others could write, or that names a broker on another machine, is ignored: it would get our login."""
    write(1, broker_url)
    assert find_dev_server() is not None
    for mode in (0o606, 0o620):
        FILE.chmod(mode)
        assert find_dev_server() is None
    FILE.chmod(0o600)
    with socket.create_server(("127.0.0.2", 0)) as foreign:  # for commands, it is not this machine
        write(1, f"nats://127.0.0.2:{foreign.getsockname()[1]}")
        assert find_dev_server() is None
    write(1, broker_url)
    monkeypatch.setattr(os, "getuid", lambda: FILE.stat().st_uid + 1)
    assert find_dev_server() is None


@pytest.mark.parametrize(
    "url",
    [
        *("user:secret@host:1", "nats://u:secret#x@host:1", "nats://a:1,nats://u:secret,x@host:1"),
        "nats://u:secret@a:1,nats://u:secret@host:1",
    ],
)
def test_url_without_login(url: str) -> None:
    """No part of a login is shown, whatever characters it contains."""
    assert url_without_login(url) == "nats://host:1"
