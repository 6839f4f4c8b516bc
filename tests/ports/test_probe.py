"""The probe of the database: it shows the end of an outage on an idle service."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.clock import NOW
from tests.harness.postgres import PostgresServer
from tests.harness.stores import bring_to_head
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY
from timer_service.core.service.upkeep import DatabaseProbe
from timer_service.core.values.errors import DatabaseUnavailableError

STORED = "SELECT database_id FROM installation"


async def test_healthy_database_is_not_written(store: Database) -> None:
    """While the database is healthy, the probe writes nothing."""
    await DatabaseProbe(store).tick(NOW)
    assert list(await store.reader.fetch(STORED)) == []


async def test_probe_ends_an_outage_on_sqlite(sqlite: SqliteDatabase, tmp_path: Path) -> None:
    """While another program holds the lock, the probe fails. Afterwards it makes the database healthy."""
    probe = DatabaseProbe(sqlite)
    await sqlite._writer.control("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(tmp_path / "timers.db", isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailableError):
            async with sqlite.transaction() as tx:
                await tx.fetch(STORED)
        with pytest.raises(DatabaseUnavailableError):
            await probe.tick(NOW)
    during = sqlite.health.usable
    await probe.tick(NOW)
    assert (during, sqlite.health) == (False, HEALTHY)


async def test_probe_keeps_the_identity_of_the_database(sqlite: SqliteDatabase) -> None:
    """The probe writes the row of the database and changes nothing in it."""
    async with sqlite.transaction() as tx:
        await tx.execute("INSERT INTO installation (one, database_id) VALUES (1, 'ours')")
    sqlite._written = sqlite.health.down("it was away")
    await DatabaseProbe(sqlite).tick(NOW)
    (row,) = await sqlite.reader.fetch("SELECT * FROM installation")
    assert (row["one"], row["database_id"]) == (1, "ours")
    assert sqlite.health == HEALTHY


async def test_probe_ends_an_outage_on_postgres(postgres_server: PostgresServer) -> None:
    """After a restart of the server, the probe makes the database healthy."""
    await bring_to_head(postgres_server.url)
    database = await PostgresDatabase.open(postgres_server.url)
    await postgres_server.stop("immediate")
    with pytest.raises(DatabaseUnavailableError):
        async with database.transaction():
            pass
    during = database.health.usable
    await postgres_server.start()
    async with asyncio.timeout(10):
        while not database.health.usable:
            try:
                await DatabaseProbe(database).tick(NOW)
            except DatabaseUnavailableError:
                await asyncio.sleep(0.01)
    assert not during
    await database.close()
