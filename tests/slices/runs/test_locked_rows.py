"""A run that another session has locked holds up neither commands on others nor the sweep of these."""

import asyncio

import pytest

from tests.harness.clock import ManualClock
from tests.harness.locks import LockedPostgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs, jobs
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.runs import loader
from timer_service.runs.rules import RunKey

LOCK_RUN = "SELECT 1 FROM runs WHERE run_id = 'run-0' FOR UPDATE"


async def test_runs_do_not_wait_for_each_other(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A command on one run is handled while another run is locked."""
    runs = Runs(locks.database, memory_broker, clock)
    for name in ("slow", "quick"):
        await runs.start({"a": [], "b": ["a"]}, runId=name)
    async with asyncio.timeout(10), locks.database.transaction() as tx:
        await loader.lock_runs(tx, [RunKey("acme", "slow")])
        await runs.report("success", "a", runId="quick")
    assert (await runs.ready()).count("b") == 1


async def test_a_locked_run(locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """While a run is locked, the sweep ends the stale jobs of other runs, and looks at the locked one every second."""
    runs = Runs(locks.database, memory_broker, clock)
    for number in range(3):
        await runs.request("StartRun", runId=f"run-{number}", jobs=jobs({"a": []}, staleAfterSeconds=60))
    clock.advance(minutes=2)
    async with locks.locked(LOCK_RUN):
        passes = [await runs.sweep.tick(clock.now()) for _ in range(2)]
        during = await statuses(runs)
        with pytest.raises(DatabaseBlockedError):
            await in_transaction(runs.database, read_locked)
    assert (during["run-1"], during["run-2"], during["run-0"]) == ("failed", "failed", "running")
    assert passes == [(2, clock.now() + 1000), (0, clock.now() + 1000)]
    await runs.sweep.tick(clock.advance(seconds=1))
    assert (await statuses(runs))["run-0"] == "failed"


async def read_locked(tx: Transaction) -> None:
    """Read a run, in order to change it."""
    await tx.wait_briefly()
    await loader.lock_runs(tx, [RunKey("acme", "run-0")])


async def statuses(runs: Runs) -> dict[str, str]:
    return {row["run_id"]: row["status"] for row in await runs.rows("runs")}
