import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

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

    def __init__(self, next_at: list[int | None] | None = None, clock: Clock | None = None) -> None:
        self.ticks: list[int] = []
        self.during: dict[int, Callable[[], None]] = {}
        self.fails_at: set[int] = set()
        self.error: Exception = RuntimeError("this tick fails")
        self._next_at = next_at or []
        self.metrics = RecordingMetrics()
        self.loop = Loop(
            "work",
            self,
            clock=clock or LoopClock(),
            polling_interval=timedelta(milliseconds=POLL),
            metrics=self.metrics,
        )

    async def tick(self, now: int) -> Pass:
        number = len(self.ticks)
        self.ticks.append(now)
        self.during.get(number, lambda: None)()
        if number in self.fails_at:
            raise self.error
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


def test_polls_without_known_work() -> None:
    """A loop that knows of no work ticks once per poll interval."""

    async def main() -> list[int]:
        return await Work().run_until(12_000)

    assert in_virtual_time(main) == [0, 5000, 10_000]


def test_sleeps_until_the_next_row() -> None:
    """The next tick begins at the millisecond when the next row becomes available."""

    async def main() -> list[int]:
        return await Work([1234, 1235]).run_until(2000)

    assert in_virtual_time(main) == [0, 1234, 1235]


def test_drains_without_sleeping() -> None:
    """The loop does not sleep while rows are available."""

    async def main() -> list[int]:
        return await Work([0] * 50).run_until(1)

    assert in_virtual_time(main) == [0] * 51


def test_poll_bounds_a_far_row() -> None:
    """A row in the far future does not delay the poll, because other instances may add earlier rows."""

    async def main() -> list[int]:
        return await Work([60_000, 60_000]).run_until(9000)

    assert in_virtual_time(main) == [0, 5000]


def test_wake_moves_the_next_tick_earlier() -> None:
    """A wake for an earlier row moves the next tick to the time of that row."""

    async def main() -> list[int]:
        work = Work([4000])
        work.wake_at(1000, available_at=2500)
        return await work.run_until(3000)

    assert in_virtual_time(main) == [0, 2500]


def test_wake_for_a_due_row() -> None:
    """A wake for a row that is already due starts a tick at once."""

    async def main() -> list[int]:
        work = Work([4000])
        work.wake_at(1000, available_at=10)
        return await work.run_until(3000)

    assert in_virtual_time(main) == [0, 1000]


def test_wake_for_a_later_row() -> None:
    """A wake for a later row does not move the next tick."""

    async def main() -> list[int]:
        work = Work([2000])
        work.wake_at(1000, available_at=3000)
        return await work.run_until(2500)

    assert in_virtual_time(main) == [0, 2000]


def test_earliest_wake_wins() -> None:
    """Of several wakes during one sleep, the earliest decides."""

    async def main() -> list[int]:
        work = Work([4500])
        for instant, available_at in ((100, 3000), (200, 2000), (300, 4000), (400, 2001)):
            work.wake_at(instant, available_at)
        return await work.run_until(2500)

    assert in_virtual_time(main) == [0, 2000]


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


@pytest.mark.parametrize("next_at", [None, 3000])
def test_clock_that_is_set_back(next_at: int | None) -> None:
    """A clock that is set back by an hour does not freeze the loop: it ticks at the end of the poll interval."""

    async def main() -> list[int]:
        clock = JumpingClock()
        work = Work([next_at], clock)
        ticked_at: list[int] = []
        work.during = {number: lambda: ticked_at.append(LoopClock().now()) for number in range(3)}
        work.at(1000, lambda: setattr(clock, "offset", -3_600_000))
        await work.run_until(11_000)
        return ticked_at

    assert in_virtual_time(main) == [0, 5000, 10_000]


def test_clock_that_is_set_back_after_a_failure() -> None:
    """A failing pass is retried within the poll interval if the clock is set back meanwhile."""

    async def main() -> int:
        clock = JumpingClock()
        work = Work(clock=clock)
        work.fails_at = {0}
        work.at(500, lambda: setattr(clock, "offset", -3_600_000))
        return len(await work.run_until(5001))

    assert in_virtual_time(main) == 2


@pytest.mark.parametrize("stop_at", [1, 700, 4999])
def test_stops_while_asleep(stop_at: int) -> None:
    """A stop ends the sleep at once, and no tick follows."""

    async def main() -> list[int]:
        return await Work().run_until(stop_at)

    assert in_virtual_time(main) == [0]


def test_stop_during_a_tick() -> None:
    """After a stop the current tick finishes and no other tick starts, even if rows are available."""

    async def main() -> Work:
        work = Work([0])
        work.during[0] = work.loop.stop
        await work.loop.run()
        return work

    work = in_virtual_time(main)
    assert work.ticks == [0]
    assert work.metrics.ticks["work"] == 1


def test_stop_before_the_first_tick() -> None:
    """A loop that is stopped before it runs does no tick."""

    async def main() -> list[int]:
        work = Work()
        work.loop.stop()
        await work.loop.run()
        return work.ticks

    assert in_virtual_time(main) == []


def test_failing_tick_is_retried() -> None:
    """A failing tick is retried after a second, any number of times, and does not end the loop."""

    async def main() -> Work:
        work = Work([3500])
        work.fails_at = {0, 1, 2}
        await work.run_until(4000)
        return work

    work = in_virtual_time(main)
    assert work.ticks == [0, 1000, 2000, 3000, 3500]
    assert work.metrics.ticks["work"] == 2


def test_database_away() -> None:
    """While the database is unavailable, the loop ticks once a second."""

    async def main() -> list[int]:
        work = Work()
        work.fails_at = {0, 1, 2}
        work.error = DatabaseUnavailableError("away")
        return await work.run_until(3500)

    assert in_virtual_time(main) == [0, 1000, 2000, 3000]


def test_wake_after_a_failed_tick() -> None:
    """A wake also shortens the pause after a failure."""

    async def main() -> list[int]:
        work = Work()
        work.fails_at = {0}
        work.wake_at(100, available_at=200)
        return await work.run_until(1000)

    assert in_virtual_time(main) == [0, 200]


def test_cancellation_ends_the_loop() -> None:
    """A cancellation of the loop's task is not treated as a failing tick."""

    async def main() -> list[int]:
        work = Work()
        running = asyncio.create_task(work.loop.run())
        work.at(1000, running.cancel)
        with pytest.raises(asyncio.CancelledError):
            await running
        return work.ticks

    assert in_virtual_time(main) == [0]


def test_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is stalled if no pass begins for a minute longer than the poll interval."""

    async def main() -> Work:
        work = Work()
        await work.run_until(1)
        return work

    began = time.monotonic()
    work = in_virtual_time(main)
    ended = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + POLL / 1000 + 60)
    in_time = work.loop.stalled
    monkeypatch.setattr(time, "monotonic", lambda: ended + POLL / 1000 + 60.001)
    assert (in_time, work.loop.stalled) == (False, True)


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

    failed, repaired = in_virtual_time(main)
    assert failed == Health.down("loop work fails: RuntimeError: this tick fails")
    assert repaired == HEALTHY


def test_health_during_a_long_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is down while a pass takes longer than ten seconds. It is healthy between passes, however long."""
    found: list[Health] = []

    async def main() -> Work:
        work = Work()
        began = time.monotonic()

        def look() -> None:
            for seconds in (9, 11):
                with monkeypatch.context() as patch:
                    patch.setattr(time, "monotonic", lambda: began + seconds)  # noqa: B023 - called at once
                    found.append(work.loop.health)

        work.during[0] = look
        await work.run_until(1)
        look()
        return work

    in_virtual_time(main)
    assert found == [HEALTHY, Health.down("loop work has been in one pass for 11 s"), HEALTHY, HEALTHY]


def test_blocked_passes(caplog: pytest.LogCaptureFixture) -> None:
    """A pass that waits for a lock is tried again every second. That is no outage, and is logged once."""

    async def main() -> tuple[list[int], list[Health]]:
        work = Work()
        work.error = DatabaseBlockedError("lock timeout")
        work.fails_at = set(range(100))
        found: list[Health] = []
        work.at(500, lambda: found.append(work.loop.health))
        return await work.run_until(101_500), found

    ticks, found = in_virtual_time(main)
    assert ticks == list(range(0, 101_000, 1000))
    assert found == [Health.down("loop work fails: lock timeout")]
    assert [record.getMessage() for record in caplog.records] == ["pass blocked; retrying it every second"]
