"""SQLite behind the database port: WAL, synchronous=FULL, one connection that writes, two that read.

One writing connection is a matter of safety, not only of speed: SQLite before 3.51.3 can corrupt a WAL database that
two connections write to. So a lock file keeps a second instance out.
"""

import asyncio
import fcntl
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite

from timer_service.adapters.sqlite.text import prepare, prepare_for_many
from timer_service.core.cancellation import run_to_completion
from timer_service.core.database import Parameters, Row
from timer_service.core.errors import DatabaseUnavailableError, StartError
from timer_service.core.health import HEALTHY, Health

_T = TypeVar("_T")
_NONE: Parameters = {}
_AWAY = {sqlite3.OperationalError, sqlite3.DatabaseError}
"""What locked, full, failing and damaged files end in."""


class _Connection(aiosqlite.Connection):
    """A connection with every statement, rows and all, in one crossing to its thread (about 110 us each)."""

    async def fetch(self, sql: str, parameters: Parameters = _NONE) -> list[Row]:
        text, values, _ = prepare(sql)
        return await self._run(lambda connection: connection.execute(text, values(parameters)).fetchall())

    async def fetch_each(self, sql: str, many: Sequence[Parameters]) -> list[Row]:
        text, values, joined = prepare_for_many(sql)

        def run(connection: sqlite3.Connection) -> list[Row]:
            given = map(values, many)
            if joined:
                return connection.execute(text, (json.dumps(list(given)),)).fetchall()
            return [row for each in given for row in connection.execute(text, each).fetchall()]

        return await self._run(run) if many else []

    async def execute_counting(self, sql: str, many: Sequence[Parameters]) -> int:
        text, values, _ = prepare(sql)

        def run(connection: sqlite3.Connection) -> int:
            return connection.executemany(text, map(values, many)).rowcount

        return await self._run(run) if many else 0

    async def control(self, sql: str) -> None:
        await self._run(lambda connection: connection.execute(sql).close())

    async def roll_back(self) -> None:
        """End the transaction, if some error such as a full disk has not ended it already."""
        await self._run(lambda connection: connection.rollback())

    async def _run(self, function: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            result: _T = await self._execute(partial(function, self._conn))  # type: ignore[no-untyped-call]
        except sqlite3.DatabaseError as error:
            if type(error) not in _AWAY or error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise  # the statement is wrong
            raise DatabaseUnavailableError(str(error)) from error
        return result


class _Transaction:
    """The write transaction that is open on the writing connection."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.fetch = connection.fetch
        self.fetch_each = connection.fetch_each

    async def execute(self, sql: str, parameters: Parameters = _NONE) -> int:
        return await self._connection.execute_counting(sql, [parameters])

    async def executemany(self, sql: str, many: Sequence[Parameters]) -> int:
        return await self._connection.execute_counting(sql, many)


class SqliteDatabase:
    """A SQLite file behind `core.database.Database`."""

    engine = "sqlite"
    exclusive = True

    def __init__(self, writer: _Connection, reader: _Connection, queries: _Connection, lock: int) -> None:
        self._writer = writer
        self._one_at_a_time = asyncio.Lock()
        self._lock = lock
        self.reader = reader
        self.queries = queries
        self.health = HEALTHY

    @classmethod
    async def open(cls, path: Path) -> "SqliteDatabase":
        """Open (or create) the file. Raises `StartError` when another instance has it or it can't be used."""
        async with AsyncExitStack() as opened:
            lock = _lock_file(path)
            opened.callback(os.close, lock)
            try:
                _check(path)
                writer = await _connect(path, "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")
                opened.push_async_callback(writer.close)
                reader = await _connect(path, "PRAGMA query_only = ON")
                opened.push_async_callback(reader.close)
                queries = await _connect(path, "PRAGMA query_only = ON")
            except (DatabaseUnavailableError, sqlite3.Error) as error:
                raise StartError(f"can't open the database {path} (TIMER_DB_PATH): {error}") from error
            opened.pop_all()
        return cls(writer, reader, queries, lock)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Transaction]:
        """Open the one write transaction there can be; others wait their turn."""
        async with self._one_at_a_time:
            try:
                try:
                    await run_to_completion(self._writer.control("BEGIN IMMEDIATE"))
                    yield _Transaction(self._writer)
                except BaseException:
                    # Queued behind a statement that a cancelled await left running, so nothing of it survives.
                    await run_to_completion(self._writer.roll_back())
                    raise
                await run_to_completion(self._commit())
            except DatabaseUnavailableError as error:
                self.health = Health.down(str(error))
                raise
            self.health = HEALTHY

    migrating = transaction

    async def _commit(self) -> None:
        try:
            await self._writer.control("COMMIT")
        except BaseException:
            await self._writer.roll_back()
            raise

    async def close(self) -> None:
        """Close all connections and let another instance have the file."""
        await self.queries.close()
        await self.reader.close()
        await self._writer.close()
        os.close(self._lock)


def _lock_file(path: Path) -> int:
    path = path.resolve()  # a second name of the file has the same lock
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"can't create {path}.lock (TIMER_DB_PATH): {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StartError(
            f"another instance uses the database {path}: SQLite is for one instance, use TIMER_DATABASE_URL for more"
        ) from error
    return lock


def _check(path: Path) -> None:
    """Meet an unusable file here: a connection that fails to open leaves its thread behind."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA schema_version")


async def _connect(path: Path, *pragmas: str) -> _Connection:
    def connector() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=5)
        connection.row_factory = sqlite3.Row
        return connection

    connection = _Connection(connector, iter_chunk_size=64)
    _ = await connection  # starts its thread
    try:
        for pragma in pragmas:
            await connection.control(pragma)
    except BaseException:
        await connection.close()
        raise
    return connection
