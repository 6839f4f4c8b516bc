"""The stores that every test of a leased table or of a slice runs on."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.harness.databases import Databases
from timer_service.adapters.migrations import migrate, read_migrations
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.database import Database

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[SqliteDatabase]:
    """Open a SQLite file, one with the whole schema if there is none yet."""
    _lay_down(await _sqlite_at_head(), path)
    database = await SqliteDatabase.open(path)
    try:
        yield database
    finally:
        await database.close()


def _lay_down(head: bytes, path: Path) -> None:
    if not path.exists():
        path.write_bytes(head)


_made: list[bytes] = []


async def _sqlite_at_head() -> bytes:
    """Return what is in a SQLite file with the whole schema and nothing else: made once, for that takes 20 ms.

    Nothing here waits for a thread: the event loop of the simulation can't.
    """
    if not _made:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "timers.db"
            database = await SqliteDatabase.open(path)
            try:
                await migrate(database, read_migrations(MIGRATIONS))
            finally:
                await database.close()
            _made.append(path.read_bytes())
    return _made[0]


def _sqlite(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Database]:
    folder: Path = request.getfixturevalue("tmp_path")
    return open_sqlite(folder / "timers.db")


async def bring_to_head(url: str) -> None:
    """Give the PostgreSQL database of a URL the whole schema."""
    database = await PostgresDatabase.open(url)
    try:
        await migrate(database, read_migrations(MIGRATIONS))
    finally:
        await database.close()


@asynccontextmanager
async def open_postgres(databases: Databases) -> AsyncIterator[PostgresDatabase]:
    """Open a PostgreSQL database that has the whole schema."""
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
"""Name -> how to open an empty store with the whole schema; one more entry puts one more store through every test."""
