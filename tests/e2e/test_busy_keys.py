"""Workflows that wait for their concurrency keys, with the real broker, a real worker, and a service that is killed."""

import asyncio
from collections import Counter

import pytest

from tests.harness.processes import NatsServer, Service
from timer_service.client import TimerClient
from timer_service.worker import Context, Worker, workflow

LIMITS = {"one": 1, "two": 2}
COUNT = 12
KILL_AFTER = (3, 9)
"""After how many begun workflows the service is killed."""


@pytest.mark.slow
async def test_queued_workflows_run_in_turn_although_the_service_is_killed(
    broker: NatsServer, service: Service
) -> None:
    """All queued workflows run once, in order, and at most as many of a key at a time as its limit says."""
    begun: list[str] = []
    running = Counter[str]()

    async def use(name: str) -> None:
        key = name.partition("-")[0]
        begun.append(name)
        running[key] += 1
        assert running[key] <= LIMITS[key]
        await asyncio.sleep(0.05)  # the work
        running[key] -= 1

    @workflow("turn")
    async def turn(ctx: Context, name: str) -> None:
        await ctx.step("use", use, name)

    names = [f"{key}-{number:02}" for number in range(COUNT) for key in LIMITS]
    worker = Worker(broker.url, tenant="acme", workflows=[turn])
    async with TimerClient.connect(broker.url) as client, asyncio.timeout(100):
        outcomes = Counter[str]()
        for name in names:
            key = name.partition("-")[0]
            outcome = await client.workflows.start(
                *("acme", name, turn, name), concurrency_key=key, concurrency_limit=LIMITS[key], when_busy="queue"
            )
            outcomes[outcome.name] += 1
        assert outcomes == {"started": 3, "queued": len(names) - 3}
        detail = await client.workflows.get("acme", "one-02")
        assert detail is not None
        assert (detail.workflow.status, detail.workflow.queued_behind) == ("queued", "one-01")
        executing = asyncio.create_task(worker.run())
        for count in KILL_AFTER:
            while len(begun) < count:
                await asyncio.sleep(0.01)
            await service.kill()
            await service.start()
        for name in names:
            await client.workflows.result("acme", name)
        worker.stop()
        await executing
    assert sorted(begun) == sorted(names), "each has run once"
    assert [name for name in begun if name.startswith("one")] == [name for name in names if name.startswith("one")]
