"""Workflows with the real broker, the real service and real workers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.e2e.conftest import ON_EACH_BROKER, ON_SQLITE
from tests.harness.processes import NatsServer, Service
from timer_service.client import TimerClient, WorkflowEndedError
from timer_service.worker import Context, Retry, Worker, WorkflowFunction, workflow

pytestmark = ON_EACH_BROKER

calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@asynccontextmanager
async def working(
    broker: NatsServer, *workflows: WorkflowFunction[Any, Any], **options: Any
) -> AsyncIterator[TimerClient]:
    """Run a worker, and stop it at the end. Yields a client."""
    worker = Worker(broker.url, tenant="acme", workflows=workflows, **options)
    async with TimerClient.connect(broker.url) as client, asyncio.timeout(100):
        running = asyncio.create_task(worker.run())
        try:
            yield client
        finally:
            worker.stop()
            await running


async def pay(order: str) -> str:
    calls[order] += 1
    if calls[order] < 3 and order == "unlucky":
        raise ValueError("try again")
    return f"paid {order}"


@workflow("order", retry=Retry(first=timedelta(milliseconds=10)))
async def order(ctx: Context, data: Any) -> Any:
    charge = await ctx.step("charge", pay, data["id"])
    await ctx.sleep(timedelta(milliseconds=300))
    return {"charge": charge, "approved": await ctx.wait_for("approval", timeout=timedelta(seconds=20))}


@workflow("deny")
async def deny(ctx: Context, _: Any) -> Any:
    try:
        await ctx.wait_for("never", timeout=timedelta(milliseconds=100))
    except TimeoutError:
        await ctx.step("raise", pay, cast(Any, []), retry=Retry(max_attempts=1))


@workflow("wide")
async def wide(ctx: Context, data: Any) -> Any:
    async def branch(number: int) -> Any:
        await ctx.sleep(timedelta(milliseconds=10 * number))
        return await ctx.step("pay", pay, f"{number}", retry=Retry(max_attempts=1))

    return await asyncio.gather(*(branch(number) for number in range(data)))


async def test_a_workflow_from_start_to_end(broker: NatsServer, service: Service) -> None:
    """Steps, a retry, a sleep and a message; the result comes to the client."""
    async with working(broker, order) as client:
        assert (await client.workflows.start("acme", "a", "order", {"id": "unlucky"})).name == "started"
        assert (await client.workflows.send("acme", "a", "approval", data=True)).name in {"sent", "kept"}
        assert await client.workflows.result("acme", "a") == {"charge": "paid unlucky", "approved": True}
        detail = await client.workflows.get("acme", "a")
    assert calls == {"unlucky": 3}
    assert detail is not None
    assert [(each.key, each.kind, each.status, each.seq) for each in detail.effects] == [
        ("charge", "step", "done", 1),
        ("sleep", "sleep", "done", 2),
        ("approval", "message", "done", 3),
    ]


async def test_a_failed_workflow(broker: NatsServer, service: Service) -> None:
    """A failure says its code, its step and its error. A cancelled workflow has no result, either."""
    async with working(broker, deny, order) as client:
        await client.workflows.start("acme", "a", "deny")
        with pytest.raises(WorkflowEndedError, match="TypeError") as raised:
            await client.workflows.result("acme", "a")
        assert (raised.value.workflow.code, raised.value.workflow.step) == ("STEP_FAILED", "raise")
        await client.workflows.start("acme", "b", "order", {"id": "b"})
        assert (await client.workflows.cancel("acme", "b", reason="stock")).name == "cancelled"
        with pytest.raises(WorkflowEndedError, match="the workflow acme/b is cancelled: stock"):
            await client.workflows.result("acme", "b")
        with pytest.raises(LookupError):
            await client.workflows.result("acme", "nobody")
        assert (await client.workflows.retry("acme", "a")).name == "retried"


@pytest.mark.slow
@ON_SQLITE
async def test_kills_of_service_and_broker(broker: NatsServer, service: Service) -> None:
    """Both are killed under workers. Every workflow ends with its result, and no step is lost."""
    async with working(broker, wide, slots=5) as client, working(broker, wide, slots=5):
        for number in range(12):
            await client.workflows.start("acme", f"w-{number}", "wide", 20)
        victims: list[Service | NatsServer] = [service, broker, service]
        for kills, victim in enumerate(victims, 1):
            while sum(calls.values()) < 40 * kills:
                await asyncio.sleep(0.01)
            await victim.kill()
            await victim.start()
        for number in range(12):
            assert await client.workflows.result("acme", f"w-{number}") == [f"paid {number}" for number in range(20)]
    assert all(count >= 12 for count in calls.values())
