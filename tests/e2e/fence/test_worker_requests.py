"""Requests of workers across accounts: a tenant executes its own workflows, and no others."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.fence import ACCOUNTS, PASSWORDS, PATIENCE_SECONDS, Operator, Peer
from tests.harness.processes import NatsServer, Service
from tests.harness.raw_worker import RawWorker, complete, start_workflows

POLL = b'{"workerId": "w", "types": ["order"], "slots": 10, "waitMs": 0}'


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Return a server on which tenants may publish and subscribe to everything in their accounts."""
    async with NatsServer(tmp_path / "nats", config=ACCOUNTS, **PASSWORDS) as server:
        yield server


async def test_tenant_executes_its_workflows(a: Peer, service: Service) -> None:
    """A polls across accounts, gets its workflow while the poll is held, reports, and receives the event."""
    (events,) = await a.subscribe("timer.evt.v1.tenant-a.workflow-completed")
    worker = RawWorker(a.connection, tenant="tenant-a")
    began = time.monotonic()
    assert await worker.poll(wait_ms=2500) == []
    assert time.monotonic() - began >= 2.4  # polls end together, up to 0.1 s early
    polling = asyncio.create_task(worker.poll(wait_ms=10_000))
    await service.until_metric("timer_polls_held", at_least=1)
    await start_workflows(a.connection, ["order-1"], "tenant-a")
    (task,) = await polling
    assert await worker.report(task, complete("ok")) == "completed"
    event = json.loads((await events.next_msg(PATIENCE_SECONDS)).data)
    assert event["payload"]["result"] == "ok"
    assert "violation" not in service.log.read_text().lower()


async def test_tenant_cannot_execute_workflows_of_another(a: Peer, b: Peer, operator: Operator) -> None:
    """A reaches no request of B. With the names and tokens of B's tasks it changes nothing either."""
    await start_workflows(b.connection, ["order-1"], "tenant-b")
    holder = RawWorker(b.connection, tenant="tenant-b")
    (task,) = await holder.poll()
    assert await a.request("timer.wrk.v1.tenant-b.poll-tasks", POLL) is None
    thief = RawWorker(a.connection, tenant="tenant-a")
    assert await thief.poll(wait_ms=0) == []
    assert await thief.report(task, complete("stolen")) == "lost"
    renewed = await thief.request("renew-tasks", workerId=thief.id, tasks=[_held(task)])
    assert renewed["lost"] == [{"workflowId": "order-1", "token": task["token"]}]
    assert (await thief.request("get-effects", **_held(task)))["error"]["code"] == "NOT_FOUND"
    assert await holder.report(task, complete("ok")) == "completed"


async def test_replies_to_requests_stay_in_the_account(a: Peer, b: Peer, operator: Operator) -> None:
    """A reply to a request of A stays in the account of A, whatever reply subject A chooses."""
    before = await operator.count_messages()
    everything = await b.subscribe(">")
    for subject in ("timer.evt.v1.tenant-b.x", "timer.cmd.v1.tenant-b.schedule-timer", "_INBOX.tenant-b.guessed"):
        (replies,) = await a.subscribe(subject)
        await a.publish("timer.wrk.v1.tenant-a.poll-tasks", POLL, subject)
        assert json.loads((await replies.next_msg(PATIENCE_SECONDS)).data) == {"tasks": []}
        await replies.unsubscribe()
    assert await operator.count_messages() == before
    assert await b.received(*everything) == []


def _held(task: Any) -> dict[str, Any]:
    return {"workflowId": task["workflowId"], "token": task["token"]}
