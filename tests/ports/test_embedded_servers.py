"""The brokers that `timer-service dev` runs as children of its process."""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NamedTuple

import aio_pika
import nats
import pytest
from redis.asyncio import Redis

from tests.harness.installed import require
from tests.harness.processes import unused_port
from timer_service.adapters.embedded import NATS, RABBITMQ, REDIS, Program, embedded_server, free_port, server
from timer_service.core.values.errors import StartError

PARENT = """
import asyncio, sys
from pathlib import Path
from timer_service.adapters.embedded import PROGRAMS, embedded_server

async def main():
    async with embedded_server(PROGRAMS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3])) as (url, _):
        print(url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def store_in_nats(url: str) -> int:
    client = await nats.connect(url, allow_reconnect=False)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(name="KEPT", subjects=["kept"])
        return (await jetstream.publish("kept", b"x", timeout=5)).seq
    finally:
        await client.close()


async def store_in_redis(url: str) -> int:
    async with Redis.from_url(url) as client:
        await client.xadd("kept", {"body": b"x"})
        return int(await client.xlen("kept"))


async def store_in_rabbitmq(url: str) -> int:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        before = (await channel.declare_queue("kept", durable=True)).declaration_result.message_count or 0
        message = aio_pika.Message(b"x", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "kept")
        return before + 1


class Server(NamedTuple):
    """A kind of server, and what differs between them."""

    program: Program
    store: Callable[[str], Awaitable[int]]
    """Store one more message. Return how many there are."""
    files: set[str]
    port_taken: str
    """Part of its log if another program has its port."""

    @property
    def kind(self) -> str:
        return self.program.label.lower()


SERVERS = {
    "nats": Server(NATS, store_in_nats, {"jetstream", "nats-server.conf", "nats-server.log"}, "address already in use"),
    "redis": Server(
        REDIS, store_in_redis, {"appendonlydir", "redis-server.conf", "redis-server.log"}, "Address already in use"
    ),
    "rabbitmq": Server(
        RABBITMQ,
        store_in_rabbitmq,
        {
            *(".erlang.cookie", "enabled_plugins", "mnesia", "rabbitmq-server.log", "rabbitmq.conf"),
            "timer-service@localhost_upgrade.log",
        },
        "eaddrinuse",
    ),
}


@pytest.fixture(params=["nats", "redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> Server:
    """Return each kind of server in turn."""
    found = SERVERS[request.param]
    require(found.program)
    return found


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def port_of(url: str) -> int:
    return int(url.partition("?")[0].rpartition(":")[2])


@asynccontextmanager
async def parent(kind: Server, data_dir: Path, port: int) -> AsyncIterator[tuple[Process, str]]:
    """Run another process that embeds a server. Yield the process and the URL when the server is up."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, kind.kind, str(data_dir), str(port), stdout=PIPE, start_new_session=True
    )
    try:
        url = await read_line(process)
        assert port_of(url) == port
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: Process) -> str:
    assert process.stdout
    async with asyncio.timeout(60):
        return (await process.stdout.readline()).decode().strip()


async def test_its_messages_are_kept(tmp_path: Path, kind: Server) -> None:
    """The server answers inside the block, and nothing listens after it. A second start has the stored messages."""
    data_dir = tmp_path / 'a "folder" of ours' / kind.kind
    port = unused_port()
    async with embedded_server(kind.program, data_dir, port) as (url, _):
        assert port_of(url) == port
        assert await kind.store(url) == 1
    assert await is_refused(port)
    async with embedded_server(kind.program, data_dir, port) as (url, _):
        assert await kind.store(url) == 2
    assert {each.name for each in data_dir.iterdir()} == kind.files


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_new_folders_are_private(tmp_path: Path, umask: int) -> None:
    """The folder of the server is created with mode 0700, whatever the umask. An existing one keeps its mode."""
    existing, new = tmp_path / "existing", tmp_path / "new"
    existing.mkdir()
    existing.chmod(0o755)
    before = os.umask(umask)
    try:
        for folder in (existing, new):
            async with embedded_server(NATS, folder, free_port(0)):
                pass
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (existing, new)] == [0o755, 0o700]


async def test_settings_sync_before_acknowledging(tmp_path: Path) -> None:
    """The settings make NATS and Redis sync before they acknowledge. The servers accept them without an error."""
    for program, setting in ((NATS, "sync_interval: always"), (REDIS, "appendfsync always")):
        require(program)
        async with embedded_server(program, tmp_path, free_port(0)):
            pass
        assert setting in (tmp_path / f"{program.name}.conf").read_text()
        log = (tmp_path / f"{program.name}.log").read_text()
        assert "ready" in log.lower()
        assert "[WRN]" not in log
        assert "[ERR]" not in log


async def test_start_waits_for_the_old_server(tmp_path: Path, kind: Server) -> None:
    """A start right after kill -9 waits until the old server has ended. They never share the store or the port.

    So the port is free again, and the new server has it although it could use another one.
    """
    port = unused_port()
    async with parent(kind, tmp_path, port) as (process, url):
        assert await kind.store(url) == 1
        process.kill()
        async with embedded_server(kind.program, tmp_path, port, or_other_port=True) as (other, _):
            assert port_of(other) == port
            assert await kind.store(other) == 2


async def test_taken_port(tmp_path: Path, kind: Server) -> None:
    """A taken port raises a start error with the log of the server, even if another server answers there.

    It is replaced if that is allowed.
    """
    async with embedded_server(kind.program, tmp_path / "first", unused_port()) as (url, _):
        port = port_of(url)
        with pytest.raises(StartError, match=rf"(?s)ended at once on port {port};.*{kind.port_taken}"):
            async with embedded_server(kind.program, tmp_path / "second", port):
                pass
        assert await kind.store(url) == 1
        async with embedded_server(kind.program, tmp_path / "second", port, or_other_port=True) as (other, _):
            assert port_of(other) != port
            assert await kind.store(other) == 1


async def test_folder_in_use(tmp_path: Path, kind: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers cannot share a folder, even on different ports."""
    monkeypatch.setattr(server, "LOCK_SECONDS", 0.05)
    async with embedded_server(kind.program, tmp_path, unused_port()) as (url, _):
        with pytest.raises(StartError, match=f"another {kind.program.name} uses"):
            async with embedded_server(kind.program, tmp_path, unused_port()):
                pass
        assert await kind.store(url) == 1


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        (NATS, r"pip install 'timer-service\[embedded\]'"),
        (REDIS, r"pip install 'timer-service\[embedded-redis\]', or on Debian: apt-get install redis-server"),
        (RABBITMQ, "pip cannot install it. On Debian: apt-get install rabbitmq-server"),
    ],
    ids=["nats", "redis", "rabbitmq"],
)
async def test_server_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program, remedy: str
) -> None:
    """If the server is missing, the start error says what to install."""

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(server, "files", absent)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match=remedy):
        async with embedded_server(program, tmp_path, free_port(0)):
            pass


def test_free_port_prefers_its_argument() -> None:
    """The preferred port is returned if it is free, and another port if it is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        preferred: int = taken.getsockname()[1]
        other = free_port(preferred)
        assert other != preferred
        socket.create_server(("127.0.0.1", other)).close()
    assert free_port(preferred) == preferred
