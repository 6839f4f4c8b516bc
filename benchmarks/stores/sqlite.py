"""The SQLite file of the service."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

from benchmarks.stores.store import PROGRESS, Filling, Progress, insert
from benchmarks.timers import now
from timer_service.timers.store import TIMERS

_COUNT, _PEEK = TIMERS.sql("count_available"), TIMERS.sql("next_available")
_INDEXES = f"SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = '{TIMERS.name}' AND sql > ''"


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

    async def progress(self) -> Progress:
        sequence, waiting = self._open().execute(PROGRESS).fetchone()
        return Progress(sequence or 0, waiting or 0)

    async def poll(self) -> None:
        reader = self._open()
        reader.execute(_COUNT, {"now": now(), "limit": 1001}).fetchall()
        reader.execute(_PEEK).fetchall()

    async def size(self) -> int:
        files = (self._file, self._file.with_name(f"{self._file.name}-wal"))
        return sum(each.stat().st_size for each in files if each.exists())

    async def fill(self, filling: Filling) -> None:
        """Without a journal and without indexes, which are created again: ten million rows in about a minute."""
        self.close()
        await asyncio.to_thread(self._fill, filling)

    def _fill(self, filling: Filling) -> None:
        first, end = filling.first, filling.first + filling.timers
        more = f"SELECT n + 1 FROM numbers WHERE n + 1 < {end}"
        numbered = f"WITH RECURSIVE numbers (n) AS (SELECT {first} UNION ALL {more})"
        statement = insert("numbers", numbered, "printf('%09d', n)", "lower(hex(randomblob(16)))", filling)
        with closing(sqlite3.connect(self._file, isolation_level=None)) as writer:
            for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -500000"):
                writer.execute(f"PRAGMA {setting}").fetchall()
            indexes = writer.execute(_INDEXES).fetchall()
            for name, _ in indexes:
                writer.execute(f"DROP INDEX {name}")
            writer.execute(statement)
            for _, sql in indexes:
                writer.execute(sql)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _open(self) -> sqlite3.Connection:
        self._reader = self._reader or sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)
        return self._reader


@asynccontextmanager
async def sqlite_store(folder: Path) -> AsyncIterator[SqliteStore]:
    """Yield a store whose file is in a folder."""
    with closing(SqliteStore(folder / "timers.db")) as store:
        yield store
