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
_BULLMQ = _ENVIRONMENT / "node_modules" / "bullmq" / "package.json"
_LAG_SECONDS = 8  # as long as `lag` by default
_SECONDS = 90
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


class Peer(NamedTuple):
    """A project, and the settings that its program uses."""

    store: str
    settings: str
    broker: str | None = None
    package: str | None = None
    """If it has another name."""


PEERS = {
    "pgqueuer": Peer("postgres", "one process, batch_size=1000, dequeue_timeout=10 ms"),
    "procrastinate": Peer("postgres", "one process, concurrency=50, fetch_job_polling_interval=10 ms"),
    "saq": Peer("postgres", "one process, concurrency=100, poll_interval=10 ms; its due times are whole seconds"),
    "huey": Peer("sqlite", "WAL, synchronous=FULL, one thread; its scheduler looks once a second"),
    "faststream-redis-timers": Peer(
        "sqlite", "one process, max_concurrent=100, polling_interval and max_polling_interval=10 ms", "redis"
    ),
    "arq": Peer("sqlite", "one process, max_jobs=100, poll_delay=10 ms, keep_result=0", "redis"),
    "saq-redis": Peer("sqlite", "one process, concurrency=100; it looks for due jobs once a second", "redis", "saq"),
    "bullmq": Peer("sqlite", "one process of node, concurrency=100, removeOnComplete", "redis"),
    "celery": Peer("sqlite", "one process, 4 threads, confirm_publish, acks_late", "rabbitmq"),
    "dbos": Peer("sqlite", "journal_mode=delete, synchronous=FULL; 100 workflows at a time"),
}


def installed(name: str) -> bool:
    """Return whether a peer is installed."""
    return (_ENVIRONMENT / ".done").exists() and (name != "bullmq" or _BULLMQ.exists())


def peer_versions() -> dict[str, str]:
    """Return the version of each peer that is installed, with its settings."""
    return {name: f"{_version(name)}, {peer.settings}" for name, peer in PEERS.items() if installed(name)}


def _version(name: str) -> str:
    if name == "bullmq":
        return str(json.loads(_BULLMQ.read_text("utf-8"))["version"])
    return subprocess.check_output([_PYTHON, "-c", _VERSION, PEERS[name].package or name], text=True).strip()


def queue_scenario(name: str) -> Callable[[Rig, int], Coroutine[Any, Any, Result]]:
    """Return the scenario of a job queue: jobs that do nothing and wait, and then jobs that are due one by one."""

    async def run(rig: Rig, jobs: int) -> Result:
        if PEERS[name].broker is None:
            found = await _run_program(name, _address(rig), jobs, _LAG_SECONDS)
        else:
            async with rig.server():
                found = await _run_program(name, rig.url, jobs, _LAG_SECONDS)
        figures = {
            "jobs that do nothing": jobs,
            "seconds from the first job to the last": found["drain_seconds"],
            "jobs/s": found["jobs_per_second"],
            "lateness p50 at 200/s, ms": found["lag_p50_ms"],
            "lateness p99 at 200/s, ms": found["lag_p99_ms"],
            "jobs executed twice": found["duplicate"],
        }
        problems = [f"{found[fault]} {fault} jobs" for fault in ("missing", "early") if found[fault]]
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
    if not installed(name):
        raise BenchmarkError(f"{name} is not installed here; it is only a peer to compare with: make peers")
    program = (PEERS[name].package or name).replace("-", "_")
    command = [str(_PYTHON), "-m", f"benchmarks.peers.{program}_program", *map(str, arguments)]
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
