"""Runs that other sessions of a PostgreSQL database have locked."""

import asyncio

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.runs import loader
from timer_service.runs.rules import RunKey


async def test_runs_do_not_wait_for_each_other(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A command on one run is handled while another run is locked."""
    runs = Runs(postgres, memory_broker, clock)
    for name in ("slow", "quick"):
        await runs.start({"a": [], "b": ["a"]}, runId=name)
    async with asyncio.timeout(10), postgres.transaction() as tx:
        await loader.lock_runs(tx, [RunKey("acme", "slow")])
        await runs.report("success", "a", runId="quick")
    assert (await runs.ready()).count("b") == 1
