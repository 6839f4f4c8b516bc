"""DBOS, a peer, with the workloads `workflows` and `steps`. It is measured if it is installed, and never needed."""

import asyncio
import json
import sys

from benchmarks.harness import ROOT, Rig
from benchmarks.processes import BenchmarkError
from benchmarks.report import Result, dbos_version


async def dbos(rig: Rig, size: int) -> Result:
    """Run workflows with one step in DBOS, 100 at a time, and one workflow with as many steps, in one process."""
    if dbos_version() is None:
        raise BenchmarkError("DBOS is not installed here; it is only a peer to compare with: pip install dbos")
    command = [sys.executable, "-m", "benchmarks.dbos_program", str(rig.folder), str(size)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise BenchmarkError(f"DBOS ended with {process.returncode}:\n{errors.decode()[-2000:]}")
    found = json.loads(output.decode().splitlines()[-1])
    workflow_seconds, step_seconds = found["workflow_seconds"], found["step_seconds"]
    figures = {
        f"workflows with one step, SQLite, journal_mode={found['journal_mode']}": size,
        "seconds of all workflows, 100 at a time": workflow_seconds,
        "workflows/s": size / workflow_seconds,
        "steps of one workflow": size,
        "seconds from the first step to the last": step_seconds,
        "steps/s": (size - 1) / step_seconds,
    }
    missing = size + 2 - found["stored"]  # the first workflow, and the one with many steps, are stored too
    return Result("dbos", figures, [f"{missing} workflows are not stored as successful"] if missing else [])
