"""The SQLite file of the service."""

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

from benchmarks.timers import now
from timer_service.timers.store import TIMERS

_COUNT, _PEEK = TIMERS.sql("count_available"), TIMERS.sql("next_available")


class SqliteStore:
    """SQLite, queried over its own read-only connection, without the thread that the service uses for its queries."""

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
    """Yield a store whose file is in a folder."""
    with closing(SqliteStore(folder / "timers.db")) as store:
        yield store
