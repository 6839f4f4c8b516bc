"""Several instances that handle signals on one PostgreSQL database at the same time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.harness.clock import NOW, ManualClock, after
from tests.harness.signals import Signals
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase


@pytest.fixture
def instances(postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> list[Signals]:
    """Four instances, each with its own transactions."""
    return [Signals(postgres, memory_broker, clock) for _ in range(4)]


async def fire(instance: Signals, handling: asyncio.Future[None]) -> None:
    """Evaluate and fire while commands are handled, and then process the rest."""
    while not handling.done():
        await instance.evaluation.tick(NOW)
        await instance.firings.tick(NOW)
    await instance.run()


async def run_together(instances: list[Signals]) -> None:
    """Let one process handle the commands in small batches while four fire, until everything is processed."""
    one = instances[0]
    reading = Signals(one.database, one.broker, one.clock, batch_size=7)
    async with asyncio.timeout(60):
        handling = asyncio.ensure_future(reading.consume())
        await all_of(lambda each: fire(each, handling), instances)
        await handling
        await one.run()


async def all_of(act: Callable[[Signals], Awaitable[None]], instances: list[Signals]) -> None:
    await asyncio.gather(*map(act, instances))


async def test_creates_and_transitions(instances: list[Signals], caplog: pytest.LogCaptureFixture) -> None:
    """If four instances fire while one of them handles commands, each signal fires once, without deadlocks."""
    caplog.set_level("INFO")
    (one, *_) = instances
    names = [f"signal-{number:03}" for number in range(150)]
    for number, name in enumerate(names):
        item, trigger = f"item-{number % 10}", {"kind": "work_item.status.transition", "to": ["blocked"]}
        one.send("CreateWorkSignal", signalId=name, workItemId=item, triggerKind="event", triggerSpec=trigger)
    for number in range(100):  # the last ten of them block an item each
        one.send("TransitionWorkItem", workItemId=f"item-{number % 10}", to="blocked" if number > 89 else "doing")
    await run_together(instances)
    assert sorted(one.fired()) == names
    assert [record for record in caplog.records if "deadlock" in str(vars(record).get("reason"))] == []


async def test_two_workers_with_the_same_firings(instances: list[Signals]) -> None:
    """Two workers that claim the same firings after an expired lease fire each signal once."""
    (one, *_) = instances
    for number in range(60):
        await one.create(f"signal-{number:02}", f"item-{number % 3}")
    for number in range(3):
        await one.transition(item=f"item-{number}")
    late = await one.firings._claim(NOW)
    now = after(minutes=1)
    one.clock.set(now)
    again = await instances[1].firings._claim(now)
    assert len(late) == len(again) == 60
    await asyncio.gather(one.firings._process(late), instances[1].firings._process(again))
    await one.run()
    assert sorted(one.fired()) == [f"signal-{number:02}" for number in range(60)]
    assert one.metrics.lost == 60
