"""Schedules that start workflows, with the real broker, the real service and a real worker."""

import asyncio
from datetime import timedelta
from typing import Any

from tests.harness.processes import NatsServer, Service
from timer_service.client import ScheduleSkipped, TimerClient, WorkflowStart
from timer_service.worker import Context, Worker, workflow

SECOND = timedelta(seconds=1)


@workflow("report")
async def report(ctx: Context, data: Any) -> Any:
    return [await ctx.step("double", _double, data), await ctx.wait_for("approval")]


def _double(number: int) -> int:
    return 2 * number


async def started_by(client: TimerClient, prefix: str, count: int) -> list[str]:
    """Return the ids of the first workflows that a schedule has started. Wait until there are so many."""
    while True:
        names = [
            each.workflow_id async for each in client.workflows.list("acme") if each.workflow_id.startswith(prefix)
        ]
        if len(names) >= count:
            return names[:count]
        await asyncio.sleep(0.05)


async def test_slots_and_a_trigger_start_workflows(broker: NatsServer, service: Service) -> None:
    """A worker executes the workflows of slots and of a trigger. A slot that finds the key taken is skipped visibly."""
    worker = Worker(broker.url, tenant="acme", workflows=[report])
    async with TimerClient.connect(broker.url) as client, asyncio.timeout(60):
        running = asyncio.create_task(worker.run())
        events = client.schedules.watch("acme")
        start = WorkflowStart(workflow_type="report", data=21)
        assert (await client.schedules.put("acme", "tick", every=SECOND, max_count=2, start=start)).name == "created"
        assert (await client.schedules.trigger("acme", "tick", data=4)).name == "triggered"
        results = []
        for name in await started_by(client, "tick/", 3):
            await client.workflows.send("acme", name, "approval", data="yes")
            results.append(await client.workflows.result("acme", name))
        assert sorted(results) == [[8, "yes"], [42, "yes"], [42, "yes"]]

        busy = WorkflowStart(workflow_type="report", data=1, concurrency_key="one")
        await client.schedules.put("acme", "busy", every=SECOND, start=busy)
        async for event in events:
            if isinstance(event, ScheduleSkipped):
                assert (event.schedule_id, event.reason) == ("busy", "busy")
                break
        assert (await client.schedules.trigger("acme", "busy")).name == "skipped_busy"
        worker.stop()
        await running
    assert await service.metric('timer_slots_not_started_total{reason="busy"}') > 0
