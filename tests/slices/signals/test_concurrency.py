"""Several instances that handle signals on one PostgreSQL database at the same time."""

import asyncio
from typing import Any

import pytest

from tests.harness.clock import NOW, ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.signals import BLOCKED, Signals
from timer_service.adapters.postgres import PostgresDatabase


async def fire(instance: Signals, handling: asyncio.Future[None]) -> None:
    """Evaluate and fire while commands are handled, and then process the rest."""
    while not handling.done():
        await instance.evaluation.tick(NOW)
        await instance.firings.tick(NOW)
    await instance.run()


async def test_creates_and_transitions(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If four instances fire while one process handles commands, each signal fires once, without deadlocks."""
    caplog.set_level("INFO")
    instances = [Signals(postgres, memory_broker, clock) for _ in range(4)]
    reading = Signals(postgres, memory_broker, clock, batch_size=7)
    names = [f"signal-{number:03}" for number in range(150)]
    for number, name in enumerate(names):
        waiting: dict[str, Any] = {"workItemId": f"item-{number % 10}", "triggerKind": "event", "triggerSpec": BLOCKED}
        reading.send("CreateWorkSignal", signalId=name, **waiting)
    for number in range(100):  # the last ten of them block an item each
        reading.send("TransitionWorkItem", workItemId=f"item-{number % 10}", to="blocked" if number > 89 else "doing")
    async with asyncio.timeout(60):
        handling = asyncio.ensure_future(reading.consume())
        await asyncio.gather(*(fire(each, handling) for each in instances))
        await handling
        await instances[0].run()
    assert sorted(instances[0].fired()) == names
    assert [record for record in caplog.records if "deadlock" in str(vars(record).get("reason"))] == []
