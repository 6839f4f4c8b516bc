import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import pytest

from tests.harness.clock import LoopClock, in_virtual_time
from tests.harness.metrics import RecordingMetrics
from timer_service.core.due.loop import Loop, Pass
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError

POLL = 5000


class Work:
    """A worker with scripted ticks."""

    def __init__(self, next_at: Sequence[int | None] = (), clock: Clock | None = None) -> None:
        self.ticks: list[int] = []
        self.during: dict[int, Callable[[], None]] = {}
        self.fails_at: set[int] = set()
        self.error: Exception = RuntimeError("this tick fails")
        self.next_at = list(next_at)
        self.metrics = RecordingMetrics()
        interval = timedelta(milliseconds=POLL)
        self.loop = Loop("work", self, clock=clock or LoopClock(), polling_interval=interval, metrics=self.metrics)

    async def tick(self, now: int) -> Pass:
        number = len(self.ticks)
        self.ticks.append(now)
        self.during.get(number, lambda: None)()
        if number in self.fails_at:
            raise self.error
        return Pass(0, self.next_at.pop(0) if self.next_at else None)

    def at(self, instant: int, act: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_at(instant / 1000, act)

    def wake_at(self, instant: int, available_at: int) -> None:
        self.at(instant, lambda: self.loop.wake(available_at))

    async def run_until(self, instant: int) -> list[int]:
        self.at(instant, self.loop.stop)
        await self.loop.run()
        assert LoopClock().now() == instant
        return self.ticks


class Story(NamedTuple):
    """What a loop meets, and when it ticks."""

    until: int
    ticks: Sequence[int]
    next_at: Sequence[int | None] = ()
    wakes: Mapping[int, int] = {}
    """For the instant of a wake, when a row becomes available."""
    fails_at: Sequence[int] = ()
    error: Exception = RuntimeError("this tick fails")


STORIES = {
    "polls without known work": Story(12_000, [0, 5000, 10_000]),
    "sleeps until the next row": Story(2000, [0, 1234, 1235], [1234, 1235]),
    "does not sleep while rows are available": Story(1, [0] * 51, [0] * 50),
    "a far row does not delay the poll": Story(9000, [0, 5000], [60_000, 60_000]),
    "a wake for an earlier row": Story(3000, [0, 2500], [4000], {1000: 2500}),
    "a wake for a due row": Story(3000, [0, 1000], [4000], {1000: 10}),
    "a wake for a later row": Story(2500, [0, 2000], [2000], {1000: 3000}),
    "the earliest wake wins": Story(2500, [0, 2000], [4500], {100: 3000, 200: 2000, 300: 4000, 400: 2001}),
    "a stop ends the sleep at once": Story(700, [0]),
    "a failing tick is retried": Story(4000, [0, 1000, 2000, 3000, 3500], [3500], fails_at=[0, 1, 2]),
    "a wake shortens the pause after a failure": Story(1000, [0, 200], wakes={100: 200}, fails_at=[0]),
    "the database is away": Story(2500, [0, 1000, 2000], fails_at=[0, 1], error=DatabaseUnavailableError("away")),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_ticks(story: Story) -> None:
    """A loop ticks when the next row is due, at a wake, or at the end of the poll interval."""

    async def main() -> list[int]:
        work = Work(story.next_at)
        work.fails_at, work.error = set(story.fails_at), story.error
        for instant, available_at in story.wakes.items():
            work.wake_at(instant, available_at)
        return await work.run_until(story.until)

    assert in_virtual_time(main) == story.ticks


def test_wake_during_a_tick_is_kept() -> None:
    """A wake during a tick is kept, even if the tick did not see the row."""

    async def main() -> list[int]:
        work = Work()
        work.during[0] = lambda: work.loop.wake(700)
        return await work.run_until(1000)

    assert in_virtual_time(main) == [0, 700]


class JumpingClock(LoopClock):
    """The clock of the event loop, plus an offset that a test sets."""

    offset = 0

    def now(self) -> int:
        return super().now() + self.offset


@pytest.mark.parametrize(("next_at", "fails_at"), [(None, []), (3000, []), (None, [0])])
def test_clock_that_is_set_back(next_at: int | None, fails_at: list[int]) -> None:
    """A clock that is set back by an hour does not freeze the loop: it ticks at the end of the poll interval."""

    async def main() -> list[int]:
        clock = JumpingClock()
        work = Work([next_at], clock)
        work.fails_at = set(fails_at)
        ticked_at: list[int] = []
        work.during = {number: lambda: ticked_at.append(LoopClock().now()) for number in range(3)}
        work.at(500, lambda: setattr(clock, "offset", -3_600_000))
        await work.run_until(11_000)
        return ticked_at

    assert in_virtual_time(main) == [0, 5000, 10_000]


@pytest.mark.parametrize("in_tick", [True, False])
def test_no_tick_after_a_stop(in_tick: bool) -> None:  # noqa: FBT001
    """After a stop the current tick finishes and no other tick starts, even if rows are available."""

    async def main() -> Work:
        work = Work([0])
        if in_tick:
            work.during[0] = work.loop.stop
        else:
            work.loop.stop()
        await work.loop.run()
        return work

    work = in_virtual_time(main)
    assert (len(work.ticks), work.metrics.ticks["work"]) == (in_tick, in_tick)


def test_health_after_a_failed_pass() -> None:
    """A loop is down with the reason after a failed pass, until a pass succeeds."""

    async def main() -> list[Health]:
        work = Work()
        work.fails_at = {0}
        found: list[Health] = []
        for instant in (500, 1500):
            work.at(instant, lambda: found.append(work.loop.health))
        await work.run_until(2000)
        return found

    assert in_virtual_time(main) == [Health.down("loop work fails: RuntimeError: this tick fails"), HEALTHY]


def test_long_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is down while a pass takes longer than ten seconds. It is healthy between passes, however long.

    It is stalled if no pass begins for a minute longer than the poll interval.
    """
    found: list[tuple[Health, bool]] = []

    async def main() -> None:
        work = Work()
        began = time.monotonic()

        def look() -> None:
            for seconds in (9, 11, POLL / 1000 + 59, POLL / 1000 + 61):
                with monkeypatch.context() as patch:
                    patch.setattr(time, "monotonic", lambda: began + seconds)  # noqa: B023 - called at once
                    found.append((work.loop.health, work.loop.stalled))

        work.during[0] = look
        await work.run_until(1)
        look()

    in_virtual_time(main)
    down = [Health.down(f"loop work has been in one pass for {seconds} s") for seconds in (11, 64, 66)]
    stalled = [False, False, False, True]
    assert found == [*zip([HEALTHY, *down], stalled, strict=True), *zip([HEALTHY] * 4, stalled, strict=True)]


def test_blocked_passes(caplog: pytest.LogCaptureFixture) -> None:
    """A pass that waits for a lock is tried again every second. That is no outage, and is logged once."""

    async def main() -> list[int]:
        work = Work()
        work.error = DatabaseBlockedError("lock timeout")
        work.fails_at = set(range(100))
        return await work.run_until(3500)

    assert in_virtual_time(main) == [0, 1000, 2000, 3000]
    assert [record.getMessage() for record in caplog.records] == ["pass blocked; retrying it every second"]
