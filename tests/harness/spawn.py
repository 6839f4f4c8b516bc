"""How tests start processes.

The tests start hundreds of processes of the service, and imports take most of the start. So these processes are forked
from a process that has already imported the service. A fork has its own environment, folder and output, and a test can
signal and kill it. Other programs are started with `subprocess`. So are `timer-service dev`, and the command line in
tests of its environment.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import time
import zoneinfo
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Protocol

BIN = Path(sys.executable).parent
TIMER_SERVICE = str(BIN / "timer-service")

_IMPORTED = [
    *(f"timer_service.cli.{each}" for each in ("serve", "doctor", "backup", "migrate", "config")),
    *(f"timer_service.cli.{each}" for each in ("timers", "signals", "schedules", "runs", "events", "listen")),
    "timer_service.adapters.sqlite",
    "timer_service.adapters.postgres",
    *("uvicorn.lifespan.off", "uvloop", "encodings.idna"),  # imported by the first use
    "tests.harness.spawn",
]
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(_IMPORTED)


class Spawned(Protocol):
    """The common interface of `subprocess.Popen` and a fork."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...


def spawn(
    command: Sequence[str], output: Path, errors: Path | None = None, *, environment: Mapping[str, str], cwd: Path
) -> Spawned:
    """Start a process. Append its output to `output` and its errors to `errors`, by default to `output` too."""
    wanted = {**os.environ, **environment}
    errors = errors or output
    if command[0] == TIMER_SERVICE:
        return _Fork(command, output, errors, wanted, cwd)
    with output.open("ab") as out, errors.open("ab") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, env=wanted, cwd=cwd)


class _Fork:
    def __init__(
        self, command: Sequence[str], output: Path, errors: Path, environment: Mapping[str, str], cwd: Path
    ) -> None:
        self._process = _forking.Process(target=_become, args=(command, output, errors, environment, cwd))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"{self._process.pid} is still running after {timeout} s")
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self._process.pid is not None and self._process.exitcode is None:
            os.kill(self._process.pid, Signals(sig))


def _become(command: Sequence[str], output: Path, errors: Path, environment: Mapping[str, str], cwd: Path) -> None:
    """Run `timer-service` in the fork, with its arguments, environment, folder and output."""
    gc.freeze()  # to look at the objects of the imports would copy the memory that the forks share
    for path, stream in ((output, sys.stdout), (errors, sys.stderr)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    zoneinfo.reset_tzpath()
    sys.argv = list(command)

    from timer_service.cli import main  # noqa: PLC0415 - so that the process of the tests does not import the service

    main()
