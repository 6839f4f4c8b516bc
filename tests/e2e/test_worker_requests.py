"""Requests of workers over a real broker: from StartWorkflow to WorkflowCompleted, with kills and several instances."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.fleet import Fleet
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_worker import RawWorker, complete, start_workflows

COMPLETED = "timer.evt.v1.acme.workflow-completed"


async def completed(user: User, count: int) -> list[Any]:
    """Wait for WorkflowCompleted events and return all of them."""
    await user.until_stored("TIMER_EVT", count)
    return [json.loads(message.data) for message in await user.read("TIMER_EVT", COMPLETED)]


async def test_from_start_to_completed(user: User, service: Service) -> None:
    """A held poll gets the workflow as soon as it starts. Its reports are stored, and its end is an event."""
    worker = RawWorker(user.connection)
    polling = asyncio.create_task(worker.poll())
    await service.until_metric("timer_polls_held", at_least=1)
    await start_workflows(user.connection, ["order-1"])
    (task,) = await polling
    assert (task["workflowId"], task["type"], task["input"], task["effects"]) == (
        "order-1",
        "order",
        {"id": "order-1"},
        [],
    )
    step = {"key": "charge", "attempt": 1, "result": {"paid": True}}
    recorded: dict[str, Any] = {"steps": [step], "seen": [{"key": "charge", "seq": 1}]}
    assert await worker.report(task, {"action": "continue"}, **recorded) == "recorded"
    assert await worker.report(task, complete("ok")) == "completed"
    assert await worker.report(task, complete("ok"), repeats=True) == "unchanged"
    (event,) = await completed(user, 1)
    assert event["payload"]["workflowId"] == "order-1"
    assert event["payload"]["result"] == "ok"
    assert await worker.poll(wait_ms=0) == []
    assert await service.metric("timer_tasks_sent_total") == 1


async def test_empty_polls_are_answered_in_time(user: User, service: Service) -> None:
    """A poll without a task is answered after a waitMs below a second, not earlier, and one with waitMs 0 at once."""
    worker = RawWorker(user.connection)
    for wait_ms, most in ((0, 500), (300, 1500)):
        began = time.monotonic()
        assert await worker.poll(wait_ms) == []
        assert wait_ms <= (time.monotonic() - began) * 1000 < wait_ms + most


async def test_poll_after_the_start(user: User, service: Service) -> None:
    """A workflow that was started while nobody polled is sent to the first poll."""
    await start_workflows(user.connection, ["order-1"])
    await user.until_handled()
    (task,) = await RawWorker(user.connection).poll(wait_ms=0)
    assert task["workflowId"] == "order-1"


async def test_bad_requests(user: User, service: Service) -> None:
    """A bad request gets an error that names the field. A report with a wrong token is lost."""
    worker = RawWorker(user.connection)
    error = await worker.request("poll-tasks", workerId="w", types=["order"], slots=-1)
    assert (error["error"]["code"], error["error"]["errors"][0]["path"]) == ("INVALID_PAYLOAD", "slots")
    nobody = {"workflowId": "order-1", "token": "0" * 16}
    assert await worker.report(nobody, complete()) == "lost"


@pytest.mark.slow
async def test_service_killed_while_it_holds_tasks(user: User, service: Service) -> None:
    """A worker that gets no reply because the service was killed gets its workflows again after the lease."""
    await start_workflows(user.connection, ["order-1"])
    await user.until_handled()
    worker = RawWorker(user.connection)
    (first,) = await worker.poll(leaseMs=10_000)
    claimed_at = time.monotonic()  # the worker is gone: nobody reports
    await service.kill()
    await service.start()
    other = RawWorker(user.connection)
    again: list[Any] = []
    async with asyncio.timeout(30):
        while not again:
            again = await other.poll(wait_ms=10_000)
    assert time.monotonic() - claimed_at >= 9.5
    assert (again[0]["workflowId"], again[0]["attempt"]) == ("order-1", 2)
    assert again[0]["token"] != first["token"]
    assert await worker.report(first, complete("stale")) == "lost"
    assert await other.report(again[0], complete("ok")) == "completed"
    assert [each["payload"]["result"] for each in await completed(user, 1)] == ["ok"]


async def report_until_settled(worker: RawWorker, task: Any) -> str:
    """Repeat a report until it has an outcome, as workers do. Return it, or `completed` if it was stored before."""
    async with asyncio.timeout(60):
        while True:
            with suppress(nats.errors.Error):
                outcome = await worker.report(task, complete("ok"), timeout=3, repeats=True)
                if outcome != "BUSY":
                    return "completed" if outcome == "unchanged" else outcome
            await asyncio.sleep(0.1)


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


async def test_disabled_workflows(user: User, broker: NatsServer, tmp_path: Path) -> None:
    """With TIMER_WORKFLOWS_ENABLED=false commands are stored, and requests get an error that says why."""
    async with Service(tmp_path / "service", broker.url, TIMER_WORKFLOWS_ENABLED="false"):
        await start_workflows(user.connection, ["order-1"])
        await user.until_handled()
        error = await RawWorker(user.connection).request("poll-tasks", workerId="w", types=["order"], slots=1)
        assert error["error"]["code"] == "BUSY"
        assert "TIMER_WORKFLOWS_ENABLED" in error["error"]["message"]
    async with Service(tmp_path / "service", broker.url):
        assert len(await RawWorker(user.connection).poll()) == 1


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
