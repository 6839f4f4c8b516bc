import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.harness.clock import LoopClock, in_virtual_time
from tests.harness.metrics import RecordingMetrics
from timer_service.core.loop import Loop, Pass

POLL = 5000


class Work:
    """A worker whose ticks, and what they say about the next one, are scripted."""

    def __init__(self, next_at: list[int | None] | None = None) -> None:
        self.ticks: list[int] = []
        self.during: dict[int, Callable[[], None]] = {}
        self.fails_at: set[int] = set()
        self._next_at = next_at or []
        self.metrics = RecordingMetrics()
        self.loop = Loop(
            "work",
            self,
            clock=LoopClock(),
            polling_interval=timedelta(milliseconds=POLL),
            metrics=self.metrics,
        )

    async def tick(self, now: int) -> Pass:
        number = len(self.ticks)
        self.ticks.append(now)
        self.during.get(number, lambda: None)()
        if number in self.fails_at:
            raise RuntimeError("this tick fails")
        return Pass(0, self._next_at.pop(0) if self._next_at else None)

    def at(self, instant: int, act: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_at(instant / 1000, act)

    def wake_at(self, instant: int, available_at: int) -> None:
        self.at(instant, lambda: self.loop.wake(available_at))

    async def run_until(self, instant: int) -> list[int]:
        self.at(instant, self.loop.stop)
        await self.loop.run()
        assert LoopClock().now() == instant
        return self.ticks


def test_polls() -> None:
    """With nothing to wait for, a tick comes every poll interval."""

    async def main() -> list[int]:
        return await Work().run_until(12_000)

    assert in_virtual_time(main) == [0, 5000, 10_000]


def test_sleeps_until_the_next_row() -> None:
    """The next tick comes to the millisecond when the next row is available."""

    async def main() -> list[int]:
        return await Work([1234, 1235]).run_until(2000)

    assert in_virtual_time(main) == [0, 1234, 1235]


def test_drains_without_sleeping() -> None:
    """As long as rows are available no time passes between ticks."""

    async def main() -> list[int]:
        return await Work([0] * 50).run_until(1)

    assert in_virtual_time(main) == [0] * 51


def test_poll_bounds_a_far_row() -> None:
    """A row far away doesn't put the poll off: rows of other instances may come before it."""

    async def main() -> list[int]:
        return await Work([60_000, 60_000]).run_until(9000)

    assert in_virtual_time(main) == [0, 5000]


def test_wakes_earlier() -> None:
    """An earlier row moves the next tick to its own time, not to the moment it is told of."""

    async def main() -> list[int]:
        work = Work([4000])
        work.wake_at(1000, available_at=2500)
        return await work.run_until(3000)

    assert in_virtual_time(main) == [0, 2500]


def test_wakes_at_once_for_what_is_due() -> None:
    """A row that is due when it is told of is ticked for at that moment."""

    async def main() -> list[int]:
        work = Work([4000])
        work.wake_at(1000, available_at=10)
        return await work.run_until(3000)

    assert in_virtual_time(main) == [0, 1000]


def test_later_wake_does_not_move_it() -> None:
    """A later row leaves the next tick where it is."""

    async def main() -> list[int]:
        work = Work([2000])
        work.wake_at(1000, available_at=3000)
        return await work.run_until(2500)

    assert in_virtual_time(main) == [0, 2000]


def test_wakes_move_it_only_earlier() -> None:
    """Of several rows told of while asleep, the earliest decides."""

    async def main() -> list[int]:
        work = Work([4500])
        for instant, available_at in ((100, 3000), (200, 2000), (300, 4000), (400, 2001)):
            work.wake_at(instant, available_at)
        return await work.run_until(2500)

    assert in_virtual_time(main) == [0, 2000]


def test_wake_during_a_tick_is_kept() -> None:
    """A row told of while a tick is under way is not forgotten, though that tick no longer saw it."""

    async def main() -> list[int]:
        work = Work()
        work.during[0] = lambda: work.loop.wake(700)
        return await work.run_until(1000)

    assert in_virtual_time(main) == [0, 700]


@pytest.mark.parametrize("stop_at", [1, 700, 4999])
def test_stops_while_asleep(stop_at: int) -> None:
    """Stopping ends the sleep at once, and no tick follows."""

    async def main() -> list[int]:
        return await Work().run_until(stop_at)

    assert in_virtual_time(main) == [0]


def test_stop_during_a_tick_lets_it_end() -> None:
    """Stopping lets the tick under way end and starts no other, though rows are available."""

    async def main() -> Work:
        work = Work([0])
        work.during[0] = work.loop.stop
        await work.loop.run()
        return work

    work = in_virtual_time(main)
    assert work.ticks == [0]
    assert work.metrics.ticks["work"] == 1


def test_stop_before_it_runs() -> None:
    """A loop that is stopped before it runs makes no tick."""

    async def main() -> list[int]:
        work = Work()
        work.loop.stop()
        await work.loop.run()
        return work.ticks

    assert in_virtual_time(main) == []


def test_failing_tick_is_tried_again() -> None:
    """A tick that fails, however often, is tried again a second later and never ends the loop."""

    async def main() -> Work:
        work = Work([3500])
        work.fails_at = {0, 1, 2}
        await work.run_until(4000)
        return work

    work = in_virtual_time(main)
    assert work.ticks == [0, 1000, 2000, 3000, 3500]
    assert work.metrics.ticks["work"] == 2


def test_wake_after_a_failed_tick() -> None:
    """Even the pause after a failure is cut short by a row that becomes available."""

    async def main() -> list[int]:
        work = Work()
        work.fails_at = {0}
        work.wake_at(100, available_at=200)
        return await work.run_until(1000)

    assert in_virtual_time(main) == [0, 200]


def test_cancellation_ends_it() -> None:
    """Cancelling the loop's task is not taken for a failing tick."""

    async def main() -> list[int]:
        work = Work()
        running = asyncio.create_task(work.loop.run())
        work.at(1000, running.cancel)
        with pytest.raises(asyncio.CancelledError):
            await running
        return work.ticks

    assert in_virtual_time(main) == [0]


def test_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop in which no pass begins for a minute more than the poll interval is stalled."""

    async def main() -> Work:
        work = Work()
        await work.run_until(1)
        return work

    begun = time.monotonic()
    work = in_virtual_time(main)
    ended = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begun + POLL / 1000 + 60)
    in_time = work.loop.stalled
    monkeypatch.setattr(time, "monotonic", lambda: ended + POLL / 1000 + 60.001)
    assert (in_time, work.loop.stalled) == (False, True)
