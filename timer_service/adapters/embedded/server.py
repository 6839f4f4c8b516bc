"""Runs a server as a child of this process: its guard, its lock, its port and its log."""

import asyncio
import fcntl
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

from timer_service.core.values.errors import StartError
from timer_service.dev_server import ask_name, broker_name

HOST = "127.0.0.1"
_STOP_SECONDS = 30
LOCK_SECONDS = 10
_PAUSE_SECONDS = 0.02
_LOG_LINES = 15
_PRIVATE_FOLDER = 0o700

# The shell starts a guard and then becomes the server. The guard reads a socket whose other end only this process has.
# When this process ends, even by kill -9, that end is closed. The guard then terminates its process group: the server
# and itself.
_GUARDED_COMMAND = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -TERM 0; } & exec 3<&-; exec "$@"'


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started at a port."""

    url: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    """None: that of this process."""


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be embedded."""

    label: str
    """The broker, in messages."""
    name: str
    """The program, in messages and in the name of its log."""
    port: int
    """The usual port."""
    find: Callable[[], Path]
    """Return the program. Raises `StartError` that says what to install."""
    prepare: Callable[[Path, Path, str, int], Launch]
    """Write the settings for the program, its folder, the name of the server and its port."""
    start_seconds: float = 15


class EmbeddedServer(NamedTuple):
    """A server that runs."""

    url: str
    ended: asyncio.Future[int]
    """Done when the server has ended. The result is its exit code."""


@asynccontextmanager
async def embedded_server(
    program: Program, data_dir: Path, port: int, *, or_other_port: bool = False
) -> AsyncIterator[EmbeddedServer]:
    """Run a server on 127.0.0.1:`port`, with all its files in `data_dir`.

    `or_other_port`: use another port if this one is taken. The last server of `data_dir` has ended before.
    The server stops at the end of the block, or when this process ends for any reason. Ctrl-C does not reach it.
    Raises `StartError` if the program is not installed, the port is taken or another server uses `data_dir`, and at the
    end of the block if the server has ended by itself.
    """
    binary = program.find()
    log = data_dir / f"{program.name}.log"
    our_end, guard_end = socket.socketpair()
    with our_end, guard_end:
        with await _open_log(log, program.name) as output:
            name = broker_name(data_dir)
            port = free_port(port) if or_other_port else port
            launch = program.prepare(binary, data_dir, name, port)
            server = await _start_server(launch, guard_end, output)
        try:
            await _wait_until_up(program, server, launch.url, name, log)
            yield EmbeddedServer(launch.url, asyncio.create_task(server.wait()))
            if server.returncode is not None:
                raise StartError(
                    f"{program.name} has ended with code {server.returncode}. What it has acknowledged is stored: "
                    f"start `timer-service dev` again. The end of {log}:\n{_tail(log)}"
                )
        finally:
            our_end.close()
            await _wait_until_ended(server)


def free_port(preferred: int, host: str = HOST) -> int:
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


def find_in_wheel(distribution: str, program: str) -> Path | None:
    """Return a program from an installed wheel, or None."""
    with suppress(PackageNotFoundError):
        for each in files(distribution) or ():
            if each.stem == program and (found := Path(str(each.locate()))).is_file():
                return found
    return None


def find_beside_python(program: str) -> Path | None:
    """Return a program in the folder of the interpreter, or None."""
    found = Path(sys.executable).parent / program
    return found if found.is_file() else None


async def _open_log(log: Path, program: str) -> BinaryIO:
    """Open and lock the log, in a folder that only this user can read.

    The server inherits the file, so it holds the lock until it ends. The lock keeps a second server out of the same
    store: not every server checks this. A server whose parent was killed needs a moment to end, so this waits.
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
            raise StartError(f"another {program} uses {log.parent}") from error
        on_error.pop_all()
    return output


def _lock(file: BinaryIO) -> bool:
    """Return whether the lock was free, and take it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _start_server(launch: Launch, guard_end: socket.socket, output: BinaryIO) -> Process:
    """Start the server and its guard in a process group of their own, so that Ctrl-C does not reach them."""
    return await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _GUARDED_COMMAND, "sh", *launch.command),
        stdin=guard_end.fileno(),
        stdout=output,
        stderr=output,
        env=launch.environment,
        start_new_session=True,
    )


async def _wait_until_up(program: Program, server: Process, url: str, name: str, log: Path) -> None:
    """Wait until the server listens. Raises `StartError` with the end of its log if it ends, or needs too long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(program.start_seconds):
            while server.returncode is None:
                # Another program may have the port. Our server greets with its name.
                if await asyncio.to_thread(ask_name, url) == name:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
    failure = "did not answer" if server.returncode is None else "ended at once"
    raise StartError(f"{program.name} {failure} on port {urlsplit(url).port}; the end of {log}:\n{_tail(log)}")


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
