"""The stores on which the tests of leased tables and slices run."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.harness.databases import Databases
from timer_service.adapters.migrations import migrate, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[SqliteDatabase]:
    """Open a SQLite file. Create it with the schema if it does not exist."""
    _write_if_missing(await _sqlite_at_head(), path)
    async with opened_sqlite(path) as database:
        yield database


@asynccontextmanager
async def opened_sqlite(path: Path) -> AsyncIterator[SqliteDatabase]:
    """Open a SQLite file as it is. Close it even if the test fails: its threads would keep the process from ending."""
    database = await SqliteDatabase.open(path)
    try:
        yield database
    finally:
        await database.close()


def _write_if_missing(head: bytes, path: Path) -> None:
    if not path.exists():
        path.write_bytes(head)


_head_files: list[bytes] = []


async def _sqlite_at_head() -> bytes:
    """Return the content of a SQLite file with the schema and no rows. It is created once, which takes 20 ms.

    This function does not wait for a thread, because the event loop of the simulation cannot wait for threads.
    """
    if not _head_files:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "timers.db"
            async with opened_sqlite(path) as database:
                await migrate(database, read_migrations(MIGRATIONS))
            _head_files.append(path.read_bytes())
    return _head_files[0]


def _sqlite(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Database]:
    folder: Path = request.getfixturevalue("tmp_path")
    return open_sqlite(folder / "timers.db")


async def bring_to_head(url: str) -> None:
    """Create the schema in a PostgreSQL database."""
    database = await PostgresDatabase.open(url)
    try:
        await migrate(database, read_migrations(MIGRATIONS))
    finally:
        await database.close()


@asynccontextmanager
async def open_postgres(databases: Databases) -> AsyncIterator[PostgresDatabase]:
    """Open an empty PostgreSQL database with the schema."""
    async with databases.database(bring_to_head) as url:
        database = await PostgresDatabase.open(url)
        try:
            yield database
        finally:
            await database.close()


def _postgres(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Database]:
    databases: Databases = request.getfixturevalue("databases")
    return open_postgres(databases)


STORES: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Database]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
}
"""The functions that open an empty store with the schema, by name. Add an entry to run the tests on another store."""
