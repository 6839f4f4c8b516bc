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
from timer_service.cli.dev_server import announce_dev_server, find_dev_server
from timer_service.client.connection import url_without_login
from timer_service.config import load_config

FOLDER = Path(".timer-service")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIMER_BROKER_URL", raising=False)
    FOLDER.mkdir()
    return tmp_path


@pytest.fixture
def broker_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"


def write(pid: int, url: str) -> None:
    pages = {"httpHost": "127.0.0.1", "httpPort": 9464}
    content = {"pid": pid, "brokerUrl": url, "database": str(FOLDER / "timers.db"), **pages}
    (FOLDER / "dev.json").write_text(json.dumps(content))


def test_running_dev(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command uses the broker of the running `dev`, unless --server or TIMER_BROKER_URL names another one."""
    write(os.getppid(), broker_url)
    assert client_config(None).broker_url == broker_url
    assert client_config("nats://other:4222").broker_url == "nats://other:4222"
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://named:4222")
    assert client_config(None).broker_url == "nats://named:4222"


def test_dev_that_is_gone(broker_url: str) -> None:
    """The file of a killed `dev` is ignored."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(gone.pid, broker_url)
    assert find_dev_server() is None
    assert client_config(None).broker_url == "nats://localhost:4222"


def test_process_without_a_broker() -> None:
    """A process that got the pid of a killed `dev` is not taken for it: no broker listens there."""
    write(os.getppid(), "nats://127.0.0.1:1")
    assert find_dev_server() is None


def test_own_process(broker_url: str) -> None:
    """A `dev` in a container may have the pid of the killed one. It does not take itself for another `dev`."""
    write(os.getpid(), broker_url)
    assert find_dev_server() is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", '{"pid": "x", "brokerUrl": 1, "database": 2}'),
        '{"pid": 1, "brokerUrl": "nats://[x", "database": "d"}',
    ],
)
def test_unreadable_file(text: str) -> None:
    """A file that is not one of `dev` is ignored."""
    (FOLDER / "dev.json").write_text(text)
    assert find_dev_server() is None


def test_announcing(broker_url: str) -> None:
    """The file names process, broker, database and HTTP address, and is removed at the end."""
    config = load_config(broker_url=broker_url, db_path=FOLDER / "timers.db")
    with announce_dev_server(FOLDER, config):
        content = json.loads((FOLDER / "dev.json").read_text())
        assert content == {
            "pid": os.getpid(),
            "brokerUrl": broker_url,
            "database": str((FOLDER / "timers.db").absolute()),
            "httpHost": config.http_host,
            "httpPort": config.http_port,
        }
    assert list(FOLDER.iterdir()) == []


def test_foreign_file(broker_url: str) -> None:
    """A file that others could write, or that names a broker on another machine, is ignored: it would get our login."""
    file = FOLDER / "dev.json"
    write(1, broker_url)
    assert find_dev_server(FOLDER) is not None
    file.chmod(0o666)
    assert find_dev_server(FOLDER) is None
    file.chmod(0o600)
    write(1, "nats://192.0.2.1:4222")
    assert find_dev_server(FOLDER) is None
    file.unlink()
    os.mkfifo(file)
    assert find_dev_server(FOLDER) is None


@pytest.mark.parametrize(
    "url",
    [
        "user:secret@host:1",
        "nats://u:secret#x@host:1",
        "nats://u:secret/x@host:1",
        "nats://a:1,nats://u:secret,x@host:1",
    ],
)
def test_url_without_login(url: str) -> None:
    """No part of a login is shown, whatever characters it contains."""
    assert url_without_login(url) == "nats://host:1"
    assert url_without_login("nats://a:1,nats://b:2") == "nats://a:1,nats://b:2"
