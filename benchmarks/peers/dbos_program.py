"""The workloads `workflows` and `steps` in DBOS on SQLite: python -m benchmarks.peers.dbos_program FOLDER SIZE.

Prints the figures as JSON.
"""

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from dbos import DBOS

_AT_ONCE = 100


async def _read_clock() -> float:
    return time.time_ns() / 1_000_000


async def _run_workflows(one_step: Callable[[], Awaitable[Any]], count: int) -> float:
    """Run workflows, `_AT_ONCE` at a time. Return the seconds."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run() -> None:
        async with slots:
            await one_step()

    began = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(count)))
    return time.perf_counter() - began


async def _measure(size: int) -> dict[str, float]:
    read_clock: Callable[[], Awaitable[float]] = DBOS.step()(_read_clock)

    async def one_step() -> float:
        return await read_clock()

    async def many_steps() -> list[float]:
        return [await read_clock() for _ in range(size)]

    one, many = DBOS.workflow()(one_step), DBOS.workflow()(many_steps)
    DBOS.launch()
    await one()  # the first one is slower
    seconds = await _run_workflows(one, size)
    times = await many()
    return {"workflow_seconds": seconds, "step_seconds": (times[-1] - times[0]) / 1000}


def main() -> None:
    """Measure and print the figures."""
    file, size = Path(sys.argv[1]) / "dbos.sqlite", int(sys.argv[2])
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"})
    figures = asyncio.run(_measure(size))
    DBOS.destroy()
    with closing(sqlite3.connect(file)) as database:
        stored = database.execute("SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'").fetchone()[0]
        journal_mode = database.execute("PRAGMA journal_mode").fetchone()[0]
    print(json.dumps({**figures, "stored": stored, "journal_mode": journal_mode}))


if __name__ == "__main__":
    main()
