"""SQLite databases as an operator finds them: files with committed rows, with and without a `-wal` file."""

import asyncio
import multiprocessing
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.harness.stores import open_sqlite, opened_sqlite

ADD = "INSERT INTO command_log VALUES (:epoch, 'a log', :epoch, 0, 0, '', 0, NULL, 0)"
"""Adds a row that `read_epochs` finds."""
KILLED = 9
"""The exit code of `run_until_step` if the process was killed."""
_spawning = multiprocessing.get_context("forkserver")


async def write_database(path: Path, epoch: int) -> None:
    """Create a database that has read a log with this epoch."""
    async with open_sqlite(path) as database, database.transaction() as tx:
        await tx.execute(ADD, {"epoch": epoch})


def kill_while_open(path: Path, epoch: int) -> None:
    """Commit one more row in a process that is then killed, so that the row is only in the `-wal` file."""
    process = _spawning.Process(target=_commit_and_die, args=(path, epoch))
    process.start()
    process.join()
    assert Path(f"{path}-wal").stat().st_size


def _commit_and_die(path: Path, epoch: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(ADD, {"epoch": epoch})
    os._exit(0)


async def read_epochs(path: Path) -> list[int]:
    """Return the epochs in a database, read as the service reads it. Raises `StartError` if it would not start."""
    async with opened_sqlite(path) as database:
        return [row["epoch"] for row in await database.reader.fetch("SELECT epoch FROM command_log ORDER BY 1")]


def run_until_step(
    work: Callable[[Path], Awaitable[object]], folder: Path, is_step: Callable[[str], bool], step: int
) -> int:
    """Run `work(folder)` in a process that is killed at its nth step. Return the exit code, 0 if there were fewer.

    A step is a call that touches a file whose name in the folder, such as `/timers.db`, is one for `is_step`.
    """
    process = _spawning.Process(target=_work_and_die, args=(work, folder, is_step, step))
    process.start()
    process.join()
    assert process.exitcode in {0, KILLED}
    return process.exitcode


def _work_and_die(
    work: Callable[[Path], Awaitable[object]], folder: Path, is_step: Callable[[str], bool], step: int
) -> None:
    left = step

    def count(_event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if any(is_step(str(each).removeprefix(str(folder))) for each in arguments):
            left -= 1
            if not left:
                os._exit(KILLED)

    async def run() -> None:
        await work(folder)

    sys.addaudithook(count)
    asyncio.run(run())
    os._exit(0)
