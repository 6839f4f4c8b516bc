import asyncio
from datetime import timedelta

import pytest

from tests.harness.clock import LoopClock, in_virtual_time
from tests.harness.memory_broker import MemoryBroker
from tests.harness.metrics import RecordingMetrics
from timer_service.core.due.loop import Loop, Pass, Wakeups

POLL = timedelta(seconds=5)


class Instance:
    """A process with one loop, whose ticks find no work."""

    def __init__(self, broker: MemoryBroker, name: str, *, alone: bool = False) -> None:
        self.ticks: list[int] = []
        self.loop = Loop(name, self, clock=LoopClock(), polling_interval=POLL, metrics=RecordingMetrics())
        self.wakeups = Wakeups(broker, LoopClock(), POLL, [self.loop], alone=alone)

    async def tick(self, now: int) -> Pass:
        self.ticks.append(now)
        return Pass(0)


@pytest.mark.parametrize(
    ("loop", "at", "alone", "ticks", "hints"),
    [
        ("timers", 2000, False, ([0, 5000], [0, 2000]), [("timers", 2000)]),
        ("timers", 6000, False, ([0, 5000], [0, 5000]), []),
        ("timers", 2000, True, ([0, 5000], [0, 5000]), []),
        ("outbox", 2000, False, ([0, 2000], [0, 5000]), []),
        ("outbox", 2000, True, ([0, 2000], [0, 5000]), []),
    ],
    ids=["before its next poll", "after its next poll", "exclusive database", "own loop", "own loop, exclusive"],
)
def test_wakes(*, loop: str, at: int, alone: bool, ticks: tuple[list[int], ...], hints: list[tuple[str, int]]) -> None:
    """A wake for a loop of another process is sent as a hint, unless that loop polls before the instant."""
    broker = MemoryBroker()
    notified: list[tuple[str, int]] = []

    async def main() -> tuple[list[int], ...]:
        await broker.subscribe_hints(lambda loop, at: notified.append((loop, at)))
        instances = Instance(broker, "outbox", alone=alone), Instance(broker, "timers", alone=alone)
        waking: list[asyncio.Future[None]] = []
        clock = asyncio.get_running_loop()
        clock.call_at(1, lambda: waking.append(asyncio.ensure_future(instances[0].wakeups.wake([loop], at))))
        for each in instances:
            await each.wakeups.subscribe()
            clock.call_at(7, each.loop.stop)
        await asyncio.gather(*(each.loop.run() for each in instances))
        return tuple(each.ticks for each in instances)

    assert (in_virtual_time(main), notified) == (ticks, hints)
