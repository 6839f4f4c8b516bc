"""An app of a tenant on a server with accounts: it reads the stream that the operator has made for the tenant."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.harness.fence import PASSWORDS, Operator, Peer
from tests.harness.processes import NatsServer
from tests.harness.waiting import until
from timer_service.client import DueTimeReached, NoAnswerError, TimerApp

LOGIN: Mapping[str, Any] = {
    "user": "tenant-a",
    "password": PASSWORDS["TENANT_A_PASSWORD"],
    "inbox_prefix": "_INBOX.tenant-a",
}


async def test_an_app_reads_the_stream_of_its_tenant(a: Peer, broker: NatsServer, operator: Operator) -> None:
    """It binds to the consumer without asking, handles each event, and acknowledges those without a handler.

    It does nothing that the server refuses.
    """
    app = TimerApp(broker.url, tenant="tenant-a", name="orders", stream="TIMER_EVT_tenant-a", **LOGIN)
    handled: list[str] = []

    @app.on_due()
    async def handle(event: DueTimeReached) -> None:
        handled.append(event.timer_id)
        if event.timer_id == "call-1":
            await app.client.timers.schedule("tenant-a", "call-2", event.due_at)

    await a.schedule("tenant-a", "call-1")  # before the app runs
    await a.publish("timer.cmd.v1.tenant-a.schedule-timer", b"no JSON")  # a CommandRejected follows
    serving = asyncio.create_task(app.serve())
    await until(lambda: serving.done() or handled == ["call-1", "call-2"])
    async with asyncio.timeout(10):
        while await operator.unacknowledged("tenant-a"):
            await asyncio.sleep(0.02)
    app.stop()
    await serving
    assert handled == ["call-1", "call-2"]
    assert "Violation" not in broker.log.read_text()


async def test_what_an_app_of_a_tenant_is_told(broker: NatsServer, operator: Operator) -> None:
    """Without `stream`, or with a stream that it may not read, the start says what to do."""
    for stream, match in [
        (None, "let the operator run `timer-service tenants events tenant-a`, and give stream='TIMER_EVT_tenant-a'"),
        ("TIMER_EVT_tenant-b", "the consumer tenant-a of the stream TIMER_EVT_tenant-b does not answer"),
    ]:
        app = TimerApp(broker.url, tenant="tenant-a", name="orders", stream=stream, **LOGIN)

        @app.on_due()
        async def handle(event: DueTimeReached) -> None: ...

        with pytest.raises(NoAnswerError, match=match):
            await app.serve()
