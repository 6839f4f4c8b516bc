"""The probe of the database: it shows the end of an outage on an idle service."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.clock import NOW
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
    """While another program holds the lock, the probe fails. Later it makes the database healthy, and keeps its id."""
    probe = DatabaseProbe(sqlite)
    async with sqlite.transaction() as tx:
        await tx.execute("INSERT INTO installation (one, database_id) VALUES (1, 'its id')")
        await tx.fetch("PRAGMA busy_timeout = 0")
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
    assert [row["database_id"] for row in await sqlite.reader.fetch(STORED)] == ["its id"]
