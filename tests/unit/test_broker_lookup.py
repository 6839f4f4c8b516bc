"""How every program finds its broker: an argument, TIMER_BROKER_URL, the `dev` of its folder, the default."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from timer_service.cli.connection import client_config, database_config, find_target
from timer_service.client import NoAnswerError, find_broker, lookup
from timer_service.client.lookup import url_without_login
from timer_service.config import load_config
from timer_service.dev_server import announce_dev_server, broker_name, find_dev_server, read_dev_server

DEV = Path(".timer-service")
FILE = DEV / "dev.json"

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def dev_folder(folder: Path) -> None:
    (DEV / "nats").mkdir(parents=True)


@contextmanager
def listener(greeting: bytes, host: str = "127.0.0.1") -> Iterator[str]:
    """Listen, send each connection a greeting and close it. Yield the URL."""
    with socket.create_server((host, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(greeting)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1024):  # with unread bytes, the close would take the greeting back
                        pass

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"nats://{host}:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


def greeting(name: str) -> bytes:
    return f'INFO {{"server_name":"{name}"}} \r\n'.encode()


@pytest.fixture
def dev_url() -> Iterator[str]:
    """The URL of a server with the name of the one in this folder."""
    with listener(greeting(broker_name(DEV / "nats"))) as url:
        yield url


def write(pid: int, url: str) -> None:
    pages = {"httpHost": "127.0.0.1", "httpPort": 9464}
    FILE.write_text(json.dumps({"pid": pid, "brokerUrl": url, "database": "timers.db", **pages}))


def test_order(dev_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument wins over the environment, that over `.env`, that over the running `dev`. An empty variable is none.

    Commands of the command line and the client find the same broker.
    """
    write(os.getppid(), dev_url)
    monkeypatch.setenv("TIMER_DATABASE_URL", "postgresql://h/d")

    def both(argument: str | None = None) -> tuple[str, str]:
        (config, broker), alone = find_target(argument), find_broker(argument)
        assert (config.broker_url, broker.url) == (alone.url, alone.url)
        return alone.url, alone.reason

    assert both() == (dev_url, "the `dev` of this folder")
    assert (client_config(None).postgres_url, client_config(None).db_path) == (None, Path("timers.db"))
    Path(".env").write_text("export timer_broker_url='nats://file:4222'\n")
    monkeypatch.setenv("TIMER_BROKER_URL", "")
    assert both() == ("nats://file:4222", "TIMER_BROKER_URL")
    monkeypatch.setenv("TIMER_BROKER_URL", "nats://named:4222")
    assert both() == ("nats://named:4222", "TIMER_BROKER_URL")
    assert both("nats://other:4222") == ("nats://other:4222", "as given")
    assert client_config("nats://other:4222").postgres_url == "postgresql://h/d"


def test_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a `dev` uses the default, and says so."""
    shutil.rmtree(DEV)
    monkeypatch.setattr(lookup, "is_dev_server", lambda _url: False)  # one may run on this machine
    assert str(find_broker()) == "nats://localhost:4222 (the default)"
    assert client_config(None).broker_url == "nats://localhost:4222"


def test_the_default_is_the_dev_of_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a `dev` does not use that of another folder. It uses any other server at the default address."""
    shutil.rmtree(DEV)
    with listener(greeting("embedded-1-1")) as url:
        monkeypatch.setattr(lookup, "DEFAULT_URL", url)
        with pytest.raises(NoAnswerError, match=f"{url} is the `dev` of another folder; use that folder, start one "):
            find_broker()
        with pytest.raises(typer.BadParameter, match=r"name a server with TIMER_BROKER_URL or --server\."):
            client_config(None)
        assert find_broker(url).url == url
    with listener(greeting("broker-1")) as url:
        monkeypatch.setattr(lookup, "DEFAULT_URL", url)
        assert str(find_broker()) == f"{url} (the default)"


REDIS_REPLY = b"+PONG\r\n*2\r\n$19\r\nproc-title-template\r\n$20\r\n{title} %s\r\n"
AMQP_REPLY = (
    b"\x01\x00\x00\x00\x00\x01\xf3\x00\n\x00\n\x00\t\x00\x00\x01\xce\x0ccluster_nameS\x00\x00\x00%c%s\tcopyrightS"
)


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_other_brokers(kind: str) -> None:
    """A `dev` with Redis or RabbitMQ is found by the name that its broker tells. Another name is not that `dev`."""
    (DEV / kind).mkdir()
    name = broker_name(DEV / kind).encode()

    def reply(name: bytes) -> bytes:
        return REDIS_REPLY % name if kind == "redis" else AMQP_REPLY % (len(name), name)

    scheme = {"redis": "redis", "rabbitmq": "amqp"}[kind]
    for answer, found in ((reply(name), True), (reply(b"embedded-1-1"), False), (b"-NOAUTH\r\n", False), (b"", False)):
        with listener(answer) as url:
            write(os.getppid(), url.replace("nats", scheme))
            dev = find_dev_server()
            assert (dev is not None) is found
            assert dev is None or (dev.broker, dev.broker_url) == (kind, url.replace("nats", scheme))


def assert_not_running() -> None:
    """A folder with a `dev` that does not run has no broker, until a server is named."""
    assert find_dev_server() is None
    with pytest.raises(NoAnswerError, match=r"the `dev` of this folder \(.*\) is not running; start it with"):
        find_broker()
    with pytest.raises(typer.BadParameter, match=r"name a server with TIMER_BROKER_URL or --server\."):
        client_config(None)
    assert client_config("nats://other:4222").broker_url == "nats://other:4222"


def test_dev_that_ended() -> None:
    """After a stop or a kill, the broker of the file is gone, but the ports stay known."""
    write(os.getppid(), "nats://127.0.0.1:1")
    assert_not_running()
    assert read_dev_server() is not None


@pytest.mark.parametrize(
    "reply", [greeting("embedded-1-1"), b"INFO {}\r\n", b"INFO [\r\n", b"INFO []\r\n", b"HTTP/1.1 200\r\n", b""]
)
def test_another_server_has_the_port(reply: bytes) -> None:
    """Another program that listens at the port is not taken for the `dev`, even if a process has its pid."""
    with listener(reply) as url:
        write(os.getppid(), url)
        assert_not_running()


def test_copied_folder(dev_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in a copy of the folder of a running `dev` do not reach that `dev`."""
    write(os.getppid(), dev_url)
    assert find_dev_server() is not None
    shutil.copytree(".", "copy")
    monkeypatch.chdir("copy")
    assert_not_running()


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '{"pid": "x", "brokerUrl": 1}', '{"pid": 1, "brokerUrl": "nats://[x", "database": "d"}']
)
def test_unreadable_file(text: str) -> None:
    """A file that is not one of `dev` counts as a `dev` that does not run. So does a first start in progress."""
    assert_not_running()
    FILE.write_text(text)
    assert_not_running()
    assert read_dev_server() is None


def test_foreign_file(dev_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that others could write, or that names another machine, is not used: its broker would get our login."""
    write(1, dev_url)
    assert find_dev_server() is not None
    for mode in (0o606, 0o620):
        FILE.chmod(mode)
        assert_not_running()
    FILE.chmod(0o600)
    with listener(greeting(broker_name(DEV / "nats")), "127.0.0.2") as url:  # for commands, it is not this machine
        write(1, url)
        assert_not_running()
    write(1, dev_url)
    monkeypatch.setattr(os, "getuid", lambda: FILE.stat().st_uid + 1)
    assert_not_running()


@pytest.mark.parametrize("name", ["DB_PATH", "DATABASE_URL", "DATABASE_URL_FILE"])
def test_database_that_is_named(dev_url: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A command that needs the database uses that of the running `dev`, unless a setting names one."""
    write(os.getppid(), dev_url)
    assert database_config().db_path == Path("timers.db")
    Path("url").write_text("postgresql://h/d")
    monkeypatch.setenv(f"TIMER_{name}", "postgresql://h/d" if name == "DATABASE_URL" else "url")
    assert database_config() == load_config()


def test_announcing(dev_url: str) -> None:
    """The file is for the owner only. It names what other programs need."""
    announce_dev_server(DEV, broker_url=dev_url, db_path=Path("timers.db"), http_host="localhost", http_port=9465)
    assert FILE.stat().st_mode & 0o777 == 0o600
    dev = find_dev_server()
    assert dev is not None
    assert (dev.pid, dev.broker_url, dev.http_host, dev.http_port) == (os.getpid(), dev_url, "localhost", 9465)
    assert dev.db_path == Path("timers.db").absolute()
    assert {*DEV.iterdir()} == {DEV / "nats", FILE}


def test_settings_file_that_cannot_be_read() -> None:
    """A `.env` that is not UTF-8 is an error: it may name the broker."""
    Path(".env").write_bytes(b"TIMER_BROKER_URL=\xff")
    with pytest.raises(NoAnswerError, match=r"cannot read \.env"):
        find_broker()


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
    assert str(find_broker(url)) == "nats://host:1 (as given)"
