"""Requests of workers over a real broker: from StartWorkflow to WorkflowCompleted, with kills and several instances."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import nats.errors
import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_worker import RawWorker, complete, start_workflows
from timer_service.client import TimerClient, WorkflowStart

COMPLETED = "timer.evt.v1.acme.workflow-completed"


async def completed(user: User, count: int) -> list[Any]:
    """Wait for WorkflowCompleted events and return all of them."""
    await user.until_stored("TIMER_EVT", count)
    return [json.loads(message.data) for message in await user.read("TIMER_EVT", COMPLETED)]


@ON_SQLITE
async def test_held_polls_at_shutdown(user: User, service: Service) -> None:
    """When the service stops, every held poll is answered without tasks, and the next one learns that nobody serves."""
    workers = [RawWorker(user.connection) for _ in range(20)]
    polls = [asyncio.create_task(each.poll(wait_ms=10_000)) for each in workers]
    await service.until_metric("timer_polls_held", at_least=20)
    began = time.monotonic()
    assert await service.terminate() == 0
    assert [await each for each in polls] == [[]] * 20
    assert time.monotonic() - began < 5
    with pytest.raises(nats.errors.NoRespondersError):
        await workers[0].poll()


async def test_hints_between_instances(user: User, fleet: Fleet) -> None:
    """A poll that one instance holds gets a workflow at once, whichever instance has handled its command."""
    async with fleet.running(2, TIMER_POLLING_INTERVAL="60000") as instances:
        worker = RawWorker(user.connection, slots=1)
        slowest = 0.0
        for number in range(30):
            polling = asyncio.create_task(worker.poll(wait_ms=10_000))
            await asyncio.gather(*[each.page("/livez") for each in instances])
            await start_workflows(user.connection, [f"order-{number}"])
            began = time.monotonic()
            (task,) = await polling
            slowest = max(slowest, time.monotonic() - began)
            assert await worker.report(task, complete()) == "completed"
        assert slowest < 5
        assert len(await completed(user, 30)) == 30
    print(f"slowest dispatch with two instances: {slowest * 1000:.0f} ms")


async def test_hints_between_roles(user: User, broker: NatsServer, fleet: Fleet) -> None:
    """A poll that a `handler` holds gets at once the workflow that a `worker` starts, for a slot of a schedule."""
    async with AsyncExitStack() as stack:
        for role in ("handler", "worker"):
            await stack.enter_async_context(fleet.instance(TIMER_ROLE=role, TIMER_POLLING_INTERVAL="60000"))
        polling = asyncio.create_task(RawWorker(user.connection, slots=1).poll(wait_ms=10_000))
        await fleet.instances[0].until_metric("timer_polls_held", at_least=1)
        async with TimerClient.connect(broker.url) as client:
            start: WorkflowStart[Any] = WorkflowStart(workflow_type="order")
            await client.schedules.put("acme", "daily", every=timedelta(seconds=1), max_count=1, start=start)
        began = time.monotonic()
        assert len(await polling) == 1
        assert time.monotonic() - began < 5
