import asyncio
from datetime import timedelta

import pytest

from tests.harness.clock import LoopClock, in_virtual_time
from tests.harness.metrics import RecordingMetrics
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.due.loop import Loop, Pass, Wakeups

POLL = timedelta(seconds=5)


class Instance:
    """A process with one loop, whose ticks find no work."""

    def __init__(self, broker: MemoryBroker, name: str = "timers", *, alone: bool = False) -> None:
        self.ticks: list[int] = []
        self.loop = Loop(name, self, clock=LoopClock(), polling_interval=POLL, metrics=RecordingMetrics())
        self.wakeups = Wakeups(broker, LoopClock(), POLL, [self.loop], alone=alone)

    async def tick(self, now: int) -> Pass:
        self.ticks.append(now)
        return Pass(0)


async def run(*instances: Instance, until: int = 7000) -> None:
    for each in instances:
        await each.wakeups.subscribe()
        asyncio.get_running_loop().call_at(until / 1000, each.loop.stop)
    await asyncio.gather(*(each.loop.run() for each in instances))


def wake_at(instant: int, waking: Instance, loop: str, at: int) -> None:
    def wake() -> None:
        tasks.append(asyncio.ensure_future(waking.wakeups.wake([loop], at)))

    tasks: list[asyncio.Future[None]] = []
    asyncio.get_running_loop().call_at(instant / 1000, wake)


@pytest.mark.parametrize(
    ("at", "ticks", "hints"),
    [(2000, [0, 2000], [("timers", 2000)]), (6000, [0, 5000], [])],
    ids=["before its next poll", "after its next poll"],
)
def test_other_instances(at: int, ticks: list[int], hints: list[tuple[str, int]]) -> None:
    """A wake for a loop of another process is sent as a hint, unless that loop polls before the instant."""
    broker = MemoryBroker()
    notified: list[tuple[str, int]] = []

    async def main() -> tuple[Instance, Instance]:
        await broker.subscribe_hints(lambda loop, at: notified.append((loop, at)))
        one, other = Instance(broker, "outbox"), Instance(broker)
        wake_at(1000, one, "timers", at)
        await run(one, other)
        return one, other

    one, other = in_virtual_time(main)
    assert (one.ticks, other.ticks, notified) == ([0, 5000], ticks, hints)


@pytest.mark.parametrize("alone", [True, False])
def test_loop_of_this_process(alone: bool) -> None:  # noqa: FBT001
    """A wake for a loop of this process wakes it, and no hint is sent."""
    broker = MemoryBroker()
    notified: list[tuple[str, int]] = []

    async def main() -> Instance:
        await broker.subscribe_hints(lambda loop, at: notified.append((loop, at)))
        instance = Instance(broker, alone=alone)
        wake_at(1000, instance, "timers", 2000)
        await run(instance)
        return instance

    assert (in_virtual_time(main).ticks, notified) == ([0, 2000], [])


def test_exclusive_database() -> None:
    """If no other process can use the database, no hint is sent, even for an unknown loop."""
    broker = MemoryBroker()
    notified: list[tuple[str, int]] = []

    async def main() -> Instance:
        await broker.subscribe_hints(lambda loop, at: notified.append((loop, at)))
        instance = Instance(broker, alone=True)
        wake_at(1000, instance, "outbox", 2000)
        await run(instance)
        return instance

    assert (in_virtual_time(main).ticks, notified) == ([0, 5000], [])
