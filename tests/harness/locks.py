"""Locks on PostgreSQL: a second session that holds them, and the wait for a session that waits for one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tests.harness.databases import Databases
from tests.harness.stores import bring_to_head
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.postgres import database as database_module


class LockedPostgres:
    """A database of the service, and a second session. The sessions of the service wait 0.1 s for a lock."""

    def __init__(self, database: PostgresDatabase, other: asyncpg.Connection) -> None:
        self.database = database
        self._other = other
        self._transaction: asyncpg.transaction.Transaction | None = None

    async def lock(self, statement: str) -> None:
        """Run a statement in the second session. Its locks are held until `unlock`. A second call does nothing."""
        if self._transaction is None:
            self._transaction = self._other.transaction()
            await self._transaction.start()
            await self._other.execute(statement)

    async def unlock(self) -> None:
        """Release the locks."""
        if self._transaction is not None:
            await self._transaction.rollback()
            self._transaction = None

    async def close(self) -> None:
        """End the second session."""
        await self._other.close()

    @asynccontextmanager
    async def locked(self, statement: str) -> AsyncIterator[None]:
        """Hold the locks of a statement."""
        await self.lock(statement)
        yield
        await self.unlock()


@asynccontextmanager
async def open_locked_postgres(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LockedPostgres]:
    """Open a database with the schema."""
    monkeypatch.setattr(database_module, "_BEGIN", database_module._BEGIN.replace("1500ms", "100ms"))
    async with databases.database(bring_to_head) as url:
        database = await PostgresDatabase.open(url)
        locks = LockedPostgres(database, await asyncpg.connect(url))
        yield locks
        await locks.close()
        await database.close()
