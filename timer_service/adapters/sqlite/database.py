"""The SQLite database: WAL, synchronous=FULL, one connection that writes and two that read.

A single writing connection is needed for safety, not only for speed. SQLite before 3.51.3 can corrupt a WAL database if
two connections write to it. So a lock file keeps a second instance out.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from timer_service.adapters.sqlite.files import OpenFiles, create_if_missing, open_lock_file
from timer_service.adapters.sqlite.restore import refuse_unfinished_restore
from timer_service.adapters.sqlite.statements import Statements, translate_errors
from timer_service.core.ports.completion import run_to_completion
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY, Health, worst
from timer_service.core.ports.transactions import TransactionEnd
from timer_service.core.values.errors import DatabaseUnavailableError, StartError

_T = TypeVar("_T")
_WRITER_CACHE_KIB = 16 * 1024


class _Connection(aiosqlite.Connection):
    """A connection that runs a statement and fetches its rows in one call to its thread."""

    health = HEALTHY
    """Whether the last statement met no outage."""
    begins_next = False
    """Whether the next statement begins a transaction, in the same call."""
    changes_before = 0
    """How many rows the connection had changed when its last transaction began."""

    async def commit_counting(self, check: Callable[[], None] | None) -> int:
        """Commit. Return how many rows the transaction has changed.

        `check` is called first. If it raises, nothing is committed. Without a statement there is nothing to commit.
        """

        def commit(connection: sqlite3.Connection) -> int:
            if check is not None:
                check()
            _execute(connection, "COMMIT")
            return connection.total_changes - self.changes_before

        return 0 if self.begins_next else await self._call(commit)

    def submit(self, function: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Let the thread run a function, at once if it is idle. A task or a coroutine would first wait for its turn."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(function, self._conn)))
        return future

    async def roll_back(self) -> None:
        """Roll back. This does nothing if an error such as a full disk has ended the transaction already."""
        await self._call(lambda connection: connection.rollback())

    async def run(self, function: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a function in the thread. If a transaction begins with it, and cannot begin, the function is not run."""

        def begin(connection: sqlite3.Connection) -> _T:
            _execute(connection, "BEGIN IMMEDIATE")
            self.begins_next = False
            self.changes_before = connection.total_changes
            return function(connection)

        return await self._call(begin if self.begins_next else function)

    async def _call(self, function: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a function in the thread, and record in the health whether it met an outage."""
        try:
            with translate_errors():
                result: _T = await self._execute(partial(function, self._conn))  # type: ignore[no-untyped-call]
        except DatabaseUnavailableError as error:
            self.health = Health.down(str(error))
            raise
        self.health = HEALTHY
        return result


class SqliteDatabase:
    """`core.ports.database.Database` on a SQLite file."""

    engine = "sqlite"
    exclusive = True

    def __init__(
        self, writer: _Connection, reader: _Connection, queries: _Connection, lock_file: int, files: OpenFiles
    ) -> None:
        self._writer = writer
        self._write_lock = asyncio.Lock()
        self._turn = asyncio.Lock()
        """The transaction with it waits for the write lock, one at a time. The work of `run` overtakes the others.

        That work is short, and due rows wait for it.
        """
        self._lock_file = lock_file
        self._connections = (queries, reader, writer)
        self._read = reader
        self.reader = Statements(reader.run, TransactionEnd())
        self.queries = Statements(queries.run, TransactionEnd())
        self.files = files
        self._written = HEALTHY

    @classmethod
    async def open(cls, path: Path) -> "SqliteDatabase":
        """Open the file, or create it with mode 0600. Raises `StartError` if it is in use or cannot be used."""
        async with AsyncExitStack() as opened:
            lock_file = open_lock_file(path)
            opened.callback(os.close, lock_file)
            refuse_unfinished_restore(path)
            try:
                _prepare_file(path)
                cache = f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}"
                writer = await _connect(path, "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", cache)
                opened.push_async_callback(writer.close)
                reader = await _connect(path, "PRAGMA query_only = ON")
                opened.push_async_callback(reader.close)
                queries = await _connect(path, "PRAGMA query_only = ON")
            except (DatabaseUnavailableError, sqlite3.Error, OSError) as error:
                raise StartError(f"cannot open the database {path} (TIMER_DB_PATH): {error}") from error
            opened.pop_all()
        return cls(writer, reader, queries, lock_file, OpenFiles(path))

    @property
    def health(self) -> Health:
        """Whether the file is still the one that was opened, and the last attempt to write succeeded."""
        return worst(self.files.health, self._written)

    @property
    def read_health(self) -> Health:
        """Whether the last read with `reader` succeeded."""
        return self._read.health

    def transaction(self) -> AbstractAsyncContextManager[Statements]:
        """Open a write transaction. Only one is open at a time; the others wait."""
        return self._transaction(None)

    def accepting(self) -> AbstractAsyncContextManager[Statements]:
        """Open a write transaction that fails if the file was deleted or replaced."""
        return self._transaction(self.files.check)

    migrating = transaction

    async def run(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Run `work` in a write transaction, in one call to the thread of the connection."""
        async with self._write_lock:
            try:
                result, changed = await run_to_completion(self._writer.submit(partial(_run_whole, work=work)))
            except DatabaseUnavailableError as error:
                self._written = Health.down(str(error))
                raise
            if changed:  # a commit without changes writes nothing, so it succeeds on a full disk too
                self._written = HEALTHY
            return result

    @asynccontextmanager
    async def _transaction(self, check: Callable[[], None] | None) -> AsyncIterator[Statements]:
        """Open a write transaction, which its first statement begins. `check` raises if it must not be committed."""
        async with self._turn, self._write_lock:
            end = TransactionEnd()
            try:
                self._writer.begins_next = True
                try:
                    yield Statements(self._writer.run, end)
                except BaseException:
                    # A cancelled await may leave its statement running. The rollback runs after it and undoes it.
                    await run_to_completion(self._writer.roll_back())
                    raise
                await run_to_completion(self._commit(check, end))
            except DatabaseUnavailableError as error:
                self._written = Health.down(str(error))
                raise

    async def _commit(self, check: Callable[[], None] | None, end: TransactionEnd) -> None:
        """Commit, and call what waits for it. Roll back if the commit fails."""
        try:
            changes = await self._writer.commit_counting(check)
        except BaseException:
            await self._writer.roll_back()
            raise
        end.committed()
        if changes:  # a commit without changes writes nothing, so it succeeds on a full disk too
            self._written = HEALTHY

    async def close(self) -> None:
        """Close all connections and release the lock on the file."""
        for connection in self._connections:
            await connection.close()
        os.close(self._lock_file)


def _prepare_file(path: Path) -> None:
    """Create the database file if it is missing. Raise the error of SQLite if the file cannot be used.

    aiosqlite does not stop the thread of a connection that fails to open, so this function opens the file first.
    """
    create_if_missing(path.resolve())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA schema_version")


async def _connect(path: Path, *pragmas: str) -> _Connection:
    """Open a connection and run its pragmas. If one fails, the connection is closed."""

    def connector() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=5)
        connection.row_factory = sqlite3.Row
        return connection

    connection = _Connection(connector, iter_chunk_size=64)
    _ = await connection  # starts its thread
    try:
        for pragma in pragmas:
            await connection.run(partial(_execute, sql=pragma))
    except BaseException:
        await connection.close()
        raise
    return connection


def _execute(connection: sqlite3.Connection, sql: str) -> None:
    """Run a statement that has no parameters and returns no rows."""
    connection.execute(sql).close()


def _run_whole(connection: sqlite3.Connection, *, work: Callable[[Transaction], Awaitable[_T]]) -> tuple[_T, int]:
    """Run `work` in a write transaction. Return its result, and how many rows the transaction has changed.

    What `on_commit` got is called in this thread.
    """
    end = TransactionEnd()

    async def run_now(function: Callable[[sqlite3.Connection], Any]) -> Any:
        with translate_errors():
            return function(connection)

    with translate_errors():
        before = connection.total_changes
        _execute(connection, "BEGIN IMMEDIATE")
        try:
            result = _finish(work(Statements(run_now, end)))
            _execute(connection, "COMMIT")
        except BaseException:
            connection.rollback()  # does nothing if an error such as a full disk has ended the transaction already
            raise
        end.committed()
        return result, connection.total_changes - before


def _finish(work: Awaitable[_T]) -> _T:
    """Return the result of a coroutine that never waits."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: _T = end.value
        return result
    raise RuntimeError("the work awaits something else than its transaction")
