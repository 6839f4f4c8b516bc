"""Connections of the client's own to the database of the user. Statements have `:name` parameters."""

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from timer_service.client.user_connection import Row, numbered, run

_SECONDS = 30
"""The longest time of a statement. After that the connection counts as lost."""
_LOCK_SECONDS = 10
"""How long a statement waits for another writer of a SQLite file."""
_CONNECTIONS = 4
_CLOSE_SECONDS = 2
"""A lost connection is not closed in order."""
_NO_FILES = ("", ":memory:")
_SCHEMES = ("postgresql://", "postgres://")


class OwnDatabase(Protocol):
    """The database of the user, over connections of the client's own. Each `run` is a transaction."""

    engine: str

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        """Run a statement for each row of parameters, and commit. Returns how many rows it changed."""

    async def fetch(self, statement: str, parameters: Row) -> Sequence[Sequence[Any]]:
        """Return the rows of a query."""


def is_postgres(database: object) -> bool:
    """Return whether a database is a PostgreSQL server, and not a SQLite file. Raises ValueError if it is neither."""
    if isinstance(database, str) and database.startswith(_SCHEMES):
        return True
    if not isinstance(database, str | os.PathLike) or "://" in str(database) or str(database) in _NO_FILES:
        raise ValueError("database must be the path of a SQLite file, or a URL that begins with postgresql://")
    return False


def database_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a database raises, also when it is away."""
    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError, TimeoutError)
    asyncpg: Any = sys.modules.get("asyncpg")
    if asyncpg is not None:
        # The last one: the error of the server was read, but not yet the end of the connection.
        errors += (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return errors


@asynccontextmanager
async def open_session(database: str | os.PathLike[str]) -> AsyncIterator[OwnDatabase]:
    """Connect to a database that exists, over one connection, for one call at a time."""
    if not is_postgres(database):
        async with open_sqlite(database, create=False) as opened:
            yield opened
        return
    import asyncpg  # noqa: PLC0415 - optional

    connection = await asyncpg.connect(str(database), timeout=_SECONDS, command_timeout=_SECONDS)
    try:
        yield _Postgres(lambda: nullcontext(connection))
    finally:
        with suppress(*database_errors()):
            await connection.close(timeout=_CLOSE_SECONDS)


@asynccontextmanager
async def open_pool(dsn: str) -> AsyncIterator[OwnDatabase]:
    """Connect to PostgreSQL for several calls at a time."""
    import asyncpg  # noqa: PLC0415 - optional

    options: Mapping[str, Any] = {"timeout": _SECONDS, "command_timeout": _SECONDS}
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=_CONNECTIONS, **options)
    try:
        yield _Postgres(pool.acquire)
    finally:
        try:
            await asyncio.wait_for(pool.close(), _CLOSE_SECONDS)
        except database_errors():
            pool.terminate()


@asynccontextmanager
async def open_sqlite(path: str | os.PathLike[str], *, create: bool) -> AsyncIterator[OwnDatabase]:
    """Open a SQLite file. Raises `sqlite3.OperationalError` if it does not exist and is not to be created."""
    uri = _uri(path, "rwc" if create else "rw")
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "timer-sqlite")
    try:
        connection = await loop.run_in_executor(thread, partial(sqlite3.connect, uri, timeout=_LOCK_SECONDS, uri=True))
        try:
            yield _Sqlite(connection, thread)
        finally:
            await loop.run_in_executor(thread, connection.close)
    finally:
        thread.shutdown(wait=False)


def _uri(path: str | os.PathLike[str], mode: str) -> str:
    return f"{Path(path).absolute().as_uri()}?mode={mode}"


class _Postgres:
    engine = "postgresql"

    def __init__(self, acquire: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._acquire = acquire

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        async with self._acquire() as connection:
            return await run(connection, statement, rows)

    async def fetch(self, statement: str, parameters: Row) -> Sequence[Sequence[Any]]:
        async with self._acquire() as connection:
            found: Sequence[Sequence[Any]] = await connection.fetch(
                numbered(statement, list(parameters)), *parameters.values()
            )
            return found


class _Sqlite:
    """A connection that is used in a thread of its own.

    A transaction is one call there. So it never waits for the event loop, which may itself wait for the lock of the
    file, in a synchronous connection of the user.
    """

    engine = "sqlite"

    def __init__(self, connection: sqlite3.Connection, thread: Executor) -> None:
        self._connection = connection
        self._thread = thread

    async def run(self, statement: str, rows: Sequence[Row]) -> int:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, statement, rows)

    async def fetch(self, statement: str, parameters: Row) -> Sequence[Sequence[Any]]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch, statement, parameters)

    def _run(self, statement: str, rows: Sequence[Row]) -> int:
        with self._connection:
            if len(rows) == 1:
                return self._connection.execute(statement, rows[0]).rowcount
            return self._connection.executemany(statement, rows).rowcount

    def _fetch(self, statement: str, parameters: Row) -> Sequence[Sequence[Any]]:
        return self._connection.execute(statement, parameters).fetchall()
