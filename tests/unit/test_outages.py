"""The log of the database's outages: one warning when it is lost, and its duration when it is back."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.harness.clock import LoopClock, in_virtual_time
from tests.harness.metrics import RecordingMetrics
from timer_service.core.due.loop import Loop, Pass
from timer_service.core.ports.health import OutageLog, log_waiting
from timer_service.core.values.errors import DatabaseUnavailableError

SECOND = timedelta(seconds=1)


class Time:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class FailingBetween:
    """A worker that cannot reach the database from one second to another."""

    def __init__(self, first: float, last: float) -> None:
        self._first = first
        self._last = last

    async def tick(self, now: int) -> Pass:
        if self._first <= now / 1000 < self._last:
            raise DatabaseUnavailableError("connection refused")
        return Pass(0)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, object]]:
    """Return the logged lines, each with its reason or its duration."""
    return [
        (record.levelno, record.message, record.__dict__.get("reason", record.__dict__.get("seconds")))
        for record in caplog.records
        if record.levelno > logging.DEBUG
    ]


LOST = (logging.WARNING, "the database is unavailable", "connection refused")


@pytest.mark.parametrize(("seconds", "logged"), [(0.9, []), (1.1, ["refused"]), (8, ["refused"])])
def test_waiting_at_the_start(seconds: float, logged: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """A part that is waited for at the start is logged once, with the reason so far, after a second."""

    async def wait() -> None:
        with log_waiting("the broker (TIMER_BROKER_URL)", lambda: "refused"):
            await asyncio.sleep(seconds)

    in_virtual_time(wait)
    assert lines(caplog) == [(logging.WARNING, "waiting for the broker (TIMER_BROKER_URL)", each) for each in logged]


def back(seconds: float) -> tuple[int, str, float]:
    return (logging.INFO, "the database is available again", seconds)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def outages(time: Time, caplog: pytest.LogCaptureFixture) -> OutageLog:
    caplog.set_level(logging.DEBUG)
    return OutageLog(time)


@pytest.mark.parametrize(("pause", "some_succeed"), [(0.5, False), (2, True)])
def test_one_outage(
    outages: OutageLog, time: Time, caplog: pytest.LogCaptureFixture, *, pause: float, some_succeed: bool
) -> None:
    """Many failures are one outage, also if some calls succeed. It ends at the first success after the last failure."""
    for _ in range(100):
        outages.record_failure("connection refused")
        time.seconds += pause
        if some_succeed:
            outages.record_success()
    outages.record_success()
    assert lines(caplog) == [LOST]
    time.seconds += 4.5
    outages.record_success()
    outages.record_success()
    assert lines(caplog) == [LOST, back(100 * pause)]


def test_loops_share_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    """All loops of an instance log an outage of a minute once when it begins and once when it has ended."""
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        running = asyncio.get_running_loop()
        outages = OutageLog(running.time)
        loops = [
            Loop(
                f"loop-{number}",
                FailingBetween(10, 70),
                clock=LoopClock(),
                polling_interval=5 * SECOND,
                metrics=RecordingMetrics(),
                outages=outages,
            )
            for number in range(7)
        ]
        stop: list[Callable[[], None]] = [loop.stop for loop in loops]
        for each in stop:
            running.call_at(90, each)
        await asyncio.gather(*(loop.run() for loop in loops))

    in_virtual_time(main)
    assert lines(caplog) == [LOST, back(60.0)]
    (lost,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert str(lost.__dict__["loop"]).startswith("loop-")
