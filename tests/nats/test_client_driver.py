"""The driver of the client and of workers: no error of the server or of a login closes the connection."""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.nats_peer import scripted_peer
from tests.harness.processes import NatsServer
from tests.harness.rotations import Certificate, Nkey, Password
from timer_service.adapters.embedded import NATS, embedded_server, free_port
from timer_service.client.connection import Connection, connector, open_connection
from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.client.nats.link import NatsLink
from timer_service.client.runs import Runs
from timer_service.core.values.address import Kind
from timer_service.dev_server import DEFAULT_FOLDER, announce_dev_server
from timer_service.nats_client import LastingClient

ANSWER: dict[str, Any] = {"tasks": []}
INFO = {"server_id": "peer", "version": "2.15.1", "headers": True, "max_payload": 1024 * 1024, "auth_required": True}
RESET = struct.pack("ii", 1, 0)


def connect_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients connect again without the usual pause."""
    connect: Any = LastingClient.connect

    async def without_pause(*args: Any, **options: Any) -> None:
        await connect(*args, **{**options, "reconnect_time_wait": 0.01})

    monkeypatch.setattr(LastingClient, "connect", without_pause)


@pytest.mark.parametrize("reason", ["User Authentication Expired", "Authorization Violation", "Stale Connection"])
async def test_a_worker_connects_again_after_an_error(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends the connection of a login that has expired. The client connects again, and its requests work."""
    connect_soon(monkeypatch)
    reconnected = asyncio.Event()

    async def note() -> None:
        reconnected.set()

    async with scripted_peer() as peer:
        peer.answer = lambda _subject, _body: ANSWER
        async with open_connection(peer.url, "worker", "timer", {"reconnected_cb": note}) as opened:
            await peer.send(b"-ERR '%b'\r\n" % reason.encode())
            async with asyncio.timeout(10):
                await reconnected.wait()
            assert await opened.request(Kind.REQUEST, "acme", "poll-tasks", b"{}", 5) == ANSWER


async def test_a_client_of_dev_connects_to_no_other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that found the `dev` of its folder waits for it, and sends no login to a server that has its port."""
    connect_soon(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIMER_BROKER_URL", raising=False)
    port, data_dir = free_port(0), DEFAULT_FOLDER / "nats"
    reconnected = asyncio.Event()
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def note() -> None:
        reconnected.set()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps({**INFO, "server_name": "another"}).encode() + b"\r\n")
        heard.put_nowait(await reader.read())
        writer.close()

    async with AsyncExitStack() as stack:
        async with embedded_server(NATS, data_dir, port) as (url, _):
            announce_dev_server(DEFAULT_FOLDER, broker_url=url, db_path=Path("db"), http_host="localhost", http_port=1)
            options = {"reconnected_cb": note, "user": "kim", "password": "secret"}
            opened = await stack.enter_async_context(open_connection(None, "user", "timer", options))
        async with asyncio.timeout(10):
            async with await asyncio.start_server(greet, "127.0.0.1", port):
                assert [await heard.get() for _ in range(3)] == [b"", b"", b""]
            assert not reconnected.is_set()
            async with embedded_server(NATS, data_dir, port):
                await reconnected.wait()
                with pytest.raises(NoAnswerError, match="no service answers"):
                    await opened.ask("acme", "get-timer", {}, 5)


async def test_the_reason_of_a_failed_connection_is_named() -> None:
    """It is not only that no server is left to try."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(NoAnswerError, match="Connect call failed"):
        async with open_connection(url, "user", "timer", {}):
            pass


async def test_a_command_leaves_no_subscription() -> None:
    """A client that sends many commands, answered or not, has no more subscriptions afterwards."""
    async with scripted_peer() as peer, open_connection(peer.url, "user", "timer", {}) as opened:
        with pytest.raises(NoAnswerError, match="no outcome within"):
            await opened.send("CancelTimer", "acme", {}, 0.05)
        await peer.until(lambda: peer.most == 1 and not peer.open)


async def test_pages() -> None:
    """Each page is asked for with the cursor of the last one. A thing that is deleted meanwhile is not found."""
    second: dict[str, Any] = {"cursor": "2"}
    gone = {"error": {"code": "NOT_FOUND", "message": "no run"}}
    answers = iter([second, {"cursor": "3"}, {"jobs": []}, second, gone, second, second])
    asked: list[Any] = []

    def answer(_subject: str, question: bytes) -> dict[str, Any]:
        asked.append(json.loads(question))
        return next(answers)

    async with scripted_peer() as peer, open_connection(peer.url, "user", "timer", {}) as opened:
        peer.answer = answer
        assert len(await opened.find_pages("acme", "get-run", {"runId": "a"}, 5)) == 3
        assert asked == [{"runId": "a"}, {"runId": "a", "cursor": "2"}, {"runId": "a", "cursor": "3"}]
        assert await opened.find_pages("acme", "get-run", {"runId": "a"}, 5) == []
        with pytest.raises(TimerServiceError, match="wrong cursor"):
            await opened.find_pages("acme", "get-run", {"runId": "a"}, 5)


async def test_a_job_on_several_pages() -> None:
    """A job whose needs continue on the next page has all of them."""
    counted = {"openJobs": 1, "unresolvedGroups": 0, "counts": {"pending": 1}, "groups": {}}
    run = {"tenantId": "acme", "runId": "a", "status": "running", "createdAt": "2027-01-01T00:00:00Z", **counted}
    first, last = ({"name": "j", "status": "pending", "needs": [{"job": need}]} for need in ("b", "c"))
    answers = iter([{**run, "cursor": "2", "jobs": [first]}, {**run, "jobs": [last]}])
    async with scripted_peer() as peer, open_connection(peer.url, "user", "timer", {}) as opened:
        peer.answer = lambda _subject, _body: next(answers)
        found = await Runs(opened).get("acme", "a")
        assert found is not None
        assert [job.needs for job in found.jobs] == [[{"job": "b"}, {"job": "c"}]]


def driver(opened: Connection) -> LastingClient:
    assert isinstance(opened.link, NatsLink)
    return opened.link.client


def refuse_login(listener: socket.socket) -> bytes:
    """Accept a connection, and reset it right after the reason, as soon as it sends. Return what it sent."""
    accepted, _ = listener.accept()
    with accepted:
        accepted.sendall(b"INFO %b\r\n" % json.dumps(INFO).encode())
        sent = accepted.recv(1024)
        accepted.sendall(b"-ERR 'Authorization Violation'\r\n")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return sent


async def test_refused_login_is_the_reason_also_of_a_reset_connection() -> None:
    """PING comes together with CONNECT, so a server that refuses the login and resets at once does not hide why."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        refusing = asyncio.ensure_future(asyncio.to_thread(refuse_login, listener))
        login = {"user": "someone", "password": "wrong", "allow_reconnect": False}
        with pytest.raises(NoAnswerError, match="Authorization Violation"):
            async with open_connection(url, "user", "timer", login):
                pass
        first, second, *_ = (await refusing).split(b"\r\n")
        assert (first[:8], second) == (b"CONNECT ", b"PING")


FAILING_LOGINS: list[Any] = [
    {"token": object()},
    {"user": "kim", "password": lambda: 1 / 0},
    {"nkeys_seed_str": "nonsense"},
    {"nkeys_seed": "/nowhere"},
    {"user_credentials": "/nowhere"},
    {"user_credentials": __file__},
    {"user": "kim", "password": "wrong"},
    {},
]
UNREADABLE_LOGINS: list[Any] = [None, {"pass": "x"}, OSError("no such file"), KeyError("x")]


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.001)


async def test_a_login_that_fails_does_not_end_the_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a login function returns or raises, the client connects as soon as a later login is right.

    A login that cannot be read is replaced by the last one.
    """
    connect_soon(monkeypatch)
    rotation = Nkey(tmp_path)
    rotation.write(0)
    login: Any = None
    calls = 0

    def read() -> Any:
        nonlocal calls
        calls += 1
        if isinstance(login, Exception):
            raise login
        return login

    async with NatsServer(tmp_path / "nats", rotation.server(0)) as server:
        login = rotation.login()
        async with open_connection(server.url, "user", "timer", {"login": read}) as opened:
            for failing in [*UNREADABLE_LOGINS, *FAILING_LOGINS]:
                login = failing
                is_unreadable = failing in UNREADABLE_LOGINS
                before = calls
                await driver(opened).force_reconnect()
                await until(lambda before=before: calls > before + 2 or opened.link.problem is None)  # type: ignore[misc]
                assert (opened.link.problem is None) is is_unreadable, failing
                login = rotation.login()
                await until(lambda: opened.link.problem is None)


async def test_a_refused_login_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a call and one line of the log say that the login is refused, until the newest one fits."""
    connect_soon(monkeypatch)
    rotation = Password(tmp_path)
    rotation.write(0)
    refused = "the broker refuses the login: Authorization Violation"
    unread = "the login at the broker cannot be read: "

    def reason() -> str:
        with pytest.raises(NoAnswerError) as caught:
            opened.link.check()
        return str(caught.value)

    async with (
        NatsServer(tmp_path / "nats", rotation.server(0)) as server,
        open_connection(server.url, "user", "timer", {"login": rotation.login}) as opened,
    ):
        await rotation.replace(server, 1)
        await until(lambda: refused in caplog.messages)
        assert reason() == f"not connected to the broker: {refused}"
        rotation.file.unlink()
        await until(lambda: f"{refused}; {unread}" in reason())
        rotation.write(1)
        await until(lambda: opened.link.problem is None)
    about = [line for line in caplog.records if line.name == "timer_service.secret_source"]
    assert len(about) == 2
    assert {line.levelno for line in about} == {logging.WARNING}


async def test_a_seed_in_a_file_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads this file again by itself, and its public key belongs to the seed in it."""
    connect_soon(monkeypatch)
    rotation = Nkey(tmp_path)
    rotation.write(0)
    async with (
        NatsServer(tmp_path / "nats", rotation.server(0)) as server,
        open_connection(server.url, "user", "timer", {"nkeys_seed": str(rotation.file)}) as opened,
    ):
        rotation.write(1)
        await rotation.replace(server, 1)
        await until(lambda: opened.link.problem is not None)
        await until(lambda: opened.link.problem is None)


async def test_first_logins_that_cannot_be_used(tmp_path: Path) -> None:
    """A server whose certificate is not trusted, and a file without credentials, are errors with a reason at once."""
    rotation = Certificate(tmp_path)
    rotation.write(1)
    async with NatsServer(tmp_path / "nats", rotation.server(0)) as server:
        url = server.url.replace("nats:", "tls:")
        async with asyncio.timeout(5):
            with pytest.raises(NoAnswerError, match=r"TLS with the broker has failed: .*self-signed"):
                async with open_connection(url, "user", "timer", {"login": rotation.login}):
                    pass
    credentials = tmp_path / "user.creds"
    credentials.write_text("-----BEGIN")
    async with NatsServer(tmp_path / "nkeys", Nkey(tmp_path).server(0)) as server, asyncio.timeout(5):
        with pytest.raises(NoAnswerError, match="credentials"):
            async with open_connection(server.url, "user", "timer", {"user_credentials": str(credentials)}):
                pass


@pytest.mark.parametrize("login", [5, {"user": "kim"}])
def test_a_login_that_is_no_function(login: Any) -> None:
    """It is refused before anything is sent."""
    with pytest.raises(ValueError, match="login must be a function"):
        connector("user", None, "timer", "_INBOX", {"login": login})
