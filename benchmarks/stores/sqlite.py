"""SQLite: the file that the service makes."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

from benchmarks.timers import now
from timer_service.timers.store import TIMERS

_COUNT, _PEEK = TIMERS.sql("count_available"), TIMERS.sql("next_available")


class SqliteStore:
    """Asked on a connection of our own: the service admits no second process, and its thread is no part of a query."""

    def __init__(self, file: Path) -> None:
        self.settings = {"TIMER_DB_PATH": str(file)}
        self._file = file
        self._reader: sqlite3.Connection | None = None

    async def facts(self) -> Mapping[str, str]:
        return {"sqlite": f"{sqlite3.sqlite_version}, synchronous=FULL"}

    async def rows(self) -> int:
        count: int = self._open().execute("SELECT count(*) FROM timer_schedules").fetchone()[0]
        return count

    async def poll(self) -> None:
        reader = self._open()
        reader.execute(_COUNT, {"now": now(), "limit": 1001}).fetchall()
        reader.execute(_PEEK).fetchall()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _open(self) -> sqlite3.Connection:
        self._reader = self._reader or sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)
        return self._reader


@asynccontextmanager
async def sqlite_store(folder: Path) -> AsyncIterator[SqliteStore]:
    """Have a file in a folder."""
    with closing(SqliteStore(folder / "timers.db")) as store:
        yield store
