"""The stores that every test of a leased table or of a slice runs on."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from timer_service.adapters.migrations import migrate, read_migrations
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.database import Database

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[SqliteDatabase]:
    """Open a SQLite file that has the whole schema."""
    database = await SqliteDatabase.open(path)
    try:
        await migrate(database, read_migrations(MIGRATIONS))
        yield database
    finally:
        await database.close()


def _sqlite(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Database]:
    folder: Path = request.getfixturevalue("tmp_path")
    return open_sqlite(folder / "timers.db")


STORES: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Database]]] = {
    "sqlite": _sqlite,
}
"""Name -> how to open an empty store with the whole schema; one more entry puts one more store through every test."""
