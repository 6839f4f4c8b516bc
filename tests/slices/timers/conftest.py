import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.timers import Timers
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database


@pytest.fixture
def timers(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    """Return the timers slice over every store in turn."""
    return Timers(store, memory_broker, clock)


@pytest.fixture
async def locker(sqlite: SqliteDatabase, tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    """A second connection that can lock the database. The service does not wait for the lock."""
    async with sqlite.transaction() as tx:
        await tx.fetch("PRAGMA busy_timeout = 0")
    connection = sqlite3.connect(tmp_path / "timers.db", isolation_level=None)
    yield connection
    connection.close()
