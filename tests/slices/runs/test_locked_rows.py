"""A run that another session has locked holds up neither commands on others nor the sweep of these."""

import asyncio

from tests.harness.clock import ManualClock
from tests.harness.locks import LockedPostgres
from tests.harness.runs import Runs, jobs
from timer_service.adapters.memory import MemoryBroker
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
    """While a run is locked, the sweep ends the stale jobs of other runs. Its delays for the locked run grow."""
    runs = Runs(locks.database, memory_broker, clock)
    for number in range(3):
        await runs.request("StartRun", runId=f"run-{number}", jobs=jobs({"a": []}, staleAfterSeconds=60))
    clock.advance(minutes=2)
    async with locks.locked(LOCK_RUN):
        passes = [await runs.sweep.tick(clock.now()) for _ in range(2)]
        during = await statuses(runs)
        first_again = await runs.sweep.tick(clock.advance(seconds=1))
        too_early = await runs.sweep.tick(clock.advance(seconds=1))
    assert (during["run-1"], during["run-2"], during["run-0"]) == ("failed", "failed", "running")
    assert [each.done for each in (*passes, first_again, too_early)] == [3, 0, 1, 0]
    assert all(each.next_at is not None and each.next_at > clock.now() - 2000 for each in passes)
    clock.advance(minutes=2)
    await runs.sweep.tick(clock.now())
    assert (await statuses(runs))["run-0"] == "failed"


async def test_a_locked_run_while_the_clock_is_ahead(
    locks: LockedPostgres, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A run that was locked while the clock was ahead is swept as soon as the clock is right again."""
    runs = Runs(locks.database, memory_broker, clock)
    await runs.request("StartRun", runId="run-0", jobs=jobs({"a": []}, staleAfterSeconds=60))
    right = clock.advance(minutes=2)
    clock.advance(days=365)
    async with locks.locked(LOCK_RUN):
        await runs.sweep.tick(clock.now())
    clock.set(right)
    await runs.sweep.tick(right)
    assert await statuses(runs) == {"run-0": "failed"}


async def statuses(runs: Runs) -> dict[str, str]:
    return {row["run_id"]: row["status"] for row in await runs.rows("runs")}
