"""The database that the settings name, its clock, and the workers that these need."""

from pathlib import Path

import pytest

from tests.harness.databases import Databases
from tests.harness.metrics import RecordingMetrics
from timer_service.adapters.postgres import PostgresClock, PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.storage import open_storage
from timer_service.clock import SystemClock
from timer_service.config import Config, load_config
from timer_service.core.values.errors import StartError


async def test_sqlite(tmp_path: Path) -> None:
    """SQLite needs a worker for the clock of the machine, and one for the file that the settings name."""
    async with open_storage(Config(db_path=tmp_path / "here.db"), RecordingMetrics()) as storage:
        assert isinstance(storage.database, SqliteDatabase)
        assert isinstance(storage.clock, SystemClock)
        assert set(storage.upkeep) == {"clock", "file"}
    assert (tmp_path / "here.db").exists()


@pytest.mark.parametrize("role", ["handler", "worker"])
async def test_role_that_sqlite_cannot_have(tmp_path: Path, role: str) -> None:
    """Only one process can use a SQLite database, so it must do everything."""
    with pytest.raises(StartError, match=f"TIMER_ROLE={role} needs a database that processes can share"):
        async with open_storage(Config.model_validate({"role": role, "db_path": tmp_path / "x"}), RecordingMetrics()):
            pass


async def test_postgres(databases: Databases) -> None:
    """On PostgreSQL, the clock of the database is measured first."""
    metrics = RecordingMetrics()
    async with (
        databases.database() as url,
        open_storage(load_config(database_url=url, role="worker"), metrics) as storage,
    ):
        assert isinstance(storage.database, PostgresDatabase)
        assert isinstance(storage.clock, PostgresClock)
        assert dict(storage.upkeep) == {"clock": storage.clock}
        assert abs(metrics.clock_offset) < 1
