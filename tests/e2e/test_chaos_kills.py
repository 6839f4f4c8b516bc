"""The service is killed again and again under a load of every slice."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import asyncpg
import pytest

from tests.harness.load import Load
from tests.harness.load_check import check_load
from tests.harness.processes import NatsServer, Service

_LEASED = {"timer_schedules": "due_at", "work_signal_firings": "due_at", "outbox": "added_at"}
"""The leased tables, with the column of the earliest instant at which a row can be available."""


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.full)])
async def test_service_is_killed_under_load(
    kills: int, tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]
) -> None:
    """Nothing is lost, nothing fires early, and no command is handled twice, however often the service is killed."""
    rng = random.Random(kills)
    async with (
        Service(tmp_path / "service", broker.url, **stored) as service,
        Load.running(broker.url, seed=kills, writers=3, far_ms=1_000) as load,
    ):
        for _ in range(kills):
            await load.until_answered(20)
            await asyncio.sleep(rng.uniform(0, 0.3))
            await service.kill()
            await _expire_leases(stored.get("TIMER_DATABASE_URL"))
            await service.start()
        found = await check_load(load, all_replied=False)
    print(f"{kills} kills of the service: {found}")


async def _expire_leases(database_url: str | None) -> None:
    """End the leases of a killed instance now. On SQLite the service does that itself when it starts."""
    if database_url is None:
        return
    connection = await asyncpg.connect(database_url)
    try:
        for table, earliest in _LEASED.items():
            await connection.execute(f"UPDATE {table} SET available_at = {earliest} WHERE lease_token IS NOT NULL")
    finally:
        await connection.close()
