"""Runs of several instances that share one PostgreSQL database."""

import asyncio

from tests.harness.clock import ManualClock
from tests.harness.runs import Runs
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.runs import loader
from timer_service.runs.rules import RunKey


async def test_two_instances_end_siblings_at_the_same_time(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """When two instances handle the last ends that a job waits for, the job becomes ready exactly once."""
    both = [Runs(postgres, memory_broker, clock), Runs(postgres, memory_broker, clock)]
    names = [f"run-{number}" for number in range(20)]
    for name in names:
        await both[0].start({"left": [], "right": [], "join": ["left", "right"]}, runId=name)
    for name in names:
        for job in ("left", "right"):
            both[0].send("ReportJobStatus", runId=name, jobName=job, status="success")
    await asyncio.gather(*(runs.consume(batch_size=1) for runs in both))
    assert (await both[0].ready()).count("join") == len(names)


async def test_runs_do_not_wait_for_each_other(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A command on one run is handled while another run is locked."""
    runs = Runs(postgres, memory_broker, clock)
    for name in ("slow", "quick"):
        await runs.start({"a": [], "b": ["a"]}, runId=name)
    async with asyncio.timeout(10), postgres.transaction() as tx:
        await loader.lock_run(tx, RunKey("acme", "slow"))
        await runs.report("success", "a", runId="quick")
    assert (await runs.ready()).count("b") == 1
