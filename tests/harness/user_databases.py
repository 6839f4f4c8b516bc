"""The database of a user, beside that of the service."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import asyncpg

from tests.harness.databases import Databases


class UserDatabase(NamedTuple):
    """A database of a user: the path of a SQLite file, or the URL of PostgreSQL."""

    place: str

    @property
    def is_postgres(self) -> bool:
        return self.place.startswith("postgresql")

    async def query(self, query: str) -> Sequence[tuple[Any, ...]]:
        """Return the rows of a query over a connection of its own."""
        if self.is_postgres:
            connection = await asyncpg.connect(self.place)
            try:
                return [tuple(row) for row in await connection.fetch(query)]
            finally:
                await connection.close()
        async with aiosqlite.connect(self.place) as file:
            found = [tuple(row) for row in await file.execute_fetchall(query)]
            await file.commit()
            return found

    def url(self, driver: str) -> str:
        """Return the URL for SQLAlchemy."""
        if self.is_postgres:
            return self.place.replace("postgresql://", f"postgresql+{driver}://")
        return f"sqlite+{driver}:///{self.place}"


@asynccontextmanager
async def sqlite_database(folder: Path) -> AsyncIterator[UserDatabase]:
    """Yield a new SQLite file of a user."""
    yield UserDatabase(str(folder / "user.db"))


@asynccontextmanager
async def postgres_database(databases: Databases) -> AsyncIterator[UserDatabase]:
    """Yield an empty database of a user."""
    async with databases.database() as url:
        yield UserDatabase(url)
