"""Workflows with the real broker, the real service and real workers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.harness.processes import NatsServer, Service
from timer_service.client import TimerClient, WorkflowEndedError
from timer_service.worker import Context, Retry, Worker, WorkflowFunction, workflow

calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@pytest.fixture
async def client(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> AsyncIterator[TimerClient]:
    async with Service(tmp_path / "service", broker.url, **stored), TimerClient.connect(broker.url) as connected:
        yield connected


@asynccontextmanager
async def working(broker: NatsServer, *workflows: WorkflowFunction, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker, and stop it at the end."""
    worker = Worker(broker.url, tenant="acme", workflows=workflows, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
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
        await ctx.step("raise", pay, [], retry=Retry(max_attempts=1))


@workflow("wide")
async def wide(ctx: Context, data: Any) -> Any:
    async def branch(number: int) -> Any:
        await ctx.sleep(timedelta(milliseconds=10 * number))
        return await ctx.step("pay", pay, f"{number}", retry=Retry(max_attempts=1))

    return await asyncio.gather(*(branch(number) for number in range(data)))


@pytest.mark.slow
async def test_a_workflow_from_start_to_end(broker: NatsServer, client: TimerClient) -> None:
    """Steps, a retry, a sleep and a message; the result comes to the client."""
    async with working(broker, order, name="first"), asyncio.timeout(30):
        for name in ("lucky", "unlucky"):
            outcome = await client.workflows.start("acme", name, "order", {"id": name})
            assert outcome.name == "started"
            assert outcome.workflow is not None
            assert outcome.workflow.type == "order"
        for name in ("lucky", "unlucky"):
            assert (await client.workflows.send("acme", name, "approval", data=True)).name == "sent"
            expected = {"charge": f"paid {name}", "approved": True}
            assert await client.workflows.result("acme", name) == expected
        assert calls == {"lucky": 1, "unlucky": 3}
        detail = await client.workflows.get("acme", "unlucky")
        assert detail is not None
        assert [(each.key, each.kind, each.status, each.seq) for each in detail.effects] == [
            ("charge", "step", "done", 1),
            ("sleep", "sleep", "done", 2),
            ("approval", "message", "done", 3),
        ]
        assert (detail.workflow.status, detail.input) == ("completed", {"id": "unlucky"})
        while not detail.has_workers:  # a worker is recorded within a second
            detail = await client.workflows.get("acme", "unlucky")
            assert detail is not None
        assert [each.name async for each in client.workflows.workers("acme")] == ["first"]
        assert {each.name async for each in client.workflows.list("acme")} == {"lucky", "unlucky"}
        assert (await client.workflows.count("acme")).by_status["completed"] == 2


async def test_a_failed_workflow(broker: NatsServer, client: TimerClient) -> None:
    """A failure says its code, its step and its error. A cancelled workflow has no result, either."""
    async with working(broker, deny, order), asyncio.timeout(30):
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
        with pytest.raises(WorkflowEndedError):
            await client.workflows.result("acme", "a")


@pytest.mark.slow
@ON_SQLITE
async def test_kills_of_the_service(tmp_path: Path, broker: NatsServer, stored: Mapping[str, str]) -> None:
    """The service is killed again and again under workers. Every workflow ends with its result, and no step is lost."""
    async with (
        Service(tmp_path / "service", broker.url, **stored) as service,
        TimerClient.connect(broker.url) as client,
        working(broker, wide, slots=5),
        asyncio.timeout(100),
    ):
        for number in range(12):
            await client.workflows.start("acme", f"w-{number}", "wide", 20)
        for kills in range(1, 4):
            while sum(calls.values()) < 40 * kills:
                await asyncio.sleep(0.01)
            await service.kill()
            await service.start()
        expected = [f"paid {number}" for number in range(20)]
        for number in range(12):
            assert await client.workflows.result("acme", f"w-{number}") == expected
    assert all(count >= 12 for count in calls.values())
