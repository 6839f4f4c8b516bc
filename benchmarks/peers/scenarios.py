"""The scenarios of the peers. Each starts a program in their environment, and reads the figures it prints."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from benchmarks.harness import ROOT, Rig
from benchmarks.processes import BenchmarkError
from benchmarks.records import Result
from benchmarks.stores import PostgresStore

_ENVIRONMENT = ROOT / ".venv-peers"
_PYTHON = _ENVIRONMENT / "bin" / "python"
_LAG_SECONDS = 6
_SECONDS = 90
_VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


class Peer(NamedTuple):
    """A project, and the settings that its program uses."""

    store: str
    settings: str


PEERS = {
    "pgqueuer": Peer("postgres", "one process, batch_size=1000, dequeue_timeout=10 ms"),
    "procrastinate": Peer("postgres", "one process, concurrency=50, fetch_job_polling_interval=10 ms"),
    "saq": Peer("postgres", "one process, concurrency=100, poll_interval=10 ms; its due times are whole seconds"),
    "huey": Peer("sqlite", "WAL, synchronous=FULL, one thread; its scheduler looks once a second"),
    "dbos": Peer("sqlite", "journal_mode=delete, synchronous=FULL; 100 workflows at a time"),
}


def installed() -> bool:
    """Return whether the peers are installed."""
    return (_ENVIRONMENT / ".done").exists()


def peer_versions() -> dict[str, str]:
    """Return the version of each peer with its settings, if the peers are installed."""
    if not installed():
        return {}
    output = subprocess.check_output([_PYTHON, "-c", _VERSIONS, *PEERS], text=True)
    return {
        name: f"{version}, {peer.settings}" for (name, peer), version in zip(PEERS.items(), output.split(), strict=True)
    }


def queue_scenario(name: str) -> Callable[[Rig, int], Coroutine[Any, Any, Result]]:
    """Return the scenario of a job queue: jobs that do nothing and wait, and then jobs that are due one by one."""

    async def run(rig: Rig, jobs: int) -> Result:
        found = await _run_program(name, _address(rig), jobs, _LAG_SECONDS)
        figures = {
            "jobs that do nothing": jobs,
            "seconds from the first job to the last": found["drain_seconds"],
            "jobs/s": found["jobs_per_second"],
            "lateness p50 at 200/s, ms": found["lag_p50_ms"],
            "lateness p99 at 200/s, ms": found["lag_p99_ms"],
        }
        problems = [f"{found[fault]} {fault} jobs" for fault in ("missing", "duplicate", "early") if found[fault]]
        return Result(figures, problems)

    return run


async def dbos(rig: Rig, size: int) -> Result:
    """Run workflows with one step in DBOS, 100 at a time, and one workflow with as many steps, in one process."""
    found = await _run_program("dbos", _address(rig), size)
    figures = {
        f"workflows with one step, SQLite, journal_mode={found['journal_mode']}": size,
        "seconds of all workflows, 100 at a time": found["workflow_seconds"],
        "workflows/s": size / found["workflow_seconds"],
        "steps of one workflow": size,
        "seconds from the first step to the last": found["step_seconds"],
        "steps/s": (size - 1) / found["step_seconds"],
    }
    missing = size + 2 - found["stored"]  # the first workflow, and the one with many steps, are stored too
    return Result(figures, [f"{missing} workflows are not stored as successful"] if missing else [])


def _address(rig: Rig) -> str:
    return rig.store.url if isinstance(rig.store, PostgresStore) else str(rig.folder)


async def _run_program(name: str, *arguments: Any) -> dict[str, Any]:
    if not installed():
        raise BenchmarkError(f"{name} is not installed here; it is only a peer to compare with: make peers")
    command = [str(_PYTHON), "-m", f"benchmarks.peers.{name}_program", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), _SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise BenchmarkError(f"{name} has not ended after {_SECONDS} s") from None
    if process.returncode != 0:
        raise BenchmarkError(f"{name} ended with {process.returncode}:\n{errors.decode()[-2000:]}")
    figures: dict[str, Any] = json.loads(output.decode().splitlines()[-1])
    return figures
