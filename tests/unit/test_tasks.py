"""Tasks that are started again after an error, and that are stopped in bounded time."""

import asyncio
import logging

import pytest

from tests.harness.clock import in_virtual_time
from timer_service.app.tasks import KeptTask, close_within, finish
from timer_service.core.ports.health import HEALTHY, Health


class FailingTwice:
    """A function that fails twice and then returns."""

    def __init__(self) -> None:
        self.started_at: list[float] = []
        self.healths: list[Health] = []
        self.task = KeptTask("consumer", self.run)

    async def run(self) -> None:
        self.started_at.append(asyncio.get_running_loop().time())
        self.healths.append(self.task.health)
        if len(self.started_at) <= 2:
            raise ValueError("a surprise")


async def ignore_cancellation(ended: asyncio.Event) -> None:
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError:
            continue


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    """Return the logged warnings and errors, each with the task that it names."""
    return [(each.message, each.__dict__.get("task")) for each in caplog.records if each.levelno >= logging.WARNING]


def test_failed_task_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """A task that fails is logged with its name and its error, and runs again after a second.

    It stays down while it fails again and again.
    """

    async def main() -> FailingTwice:
        failing = FailingTwice()
        await failing.task.run()
        return failing

    failing = in_virtual_time(main)
    assert failing.started_at == [0, 1, 2]
    down = Health.down("consumer failed: ValueError")
    assert failing.healths == [HEALTHY, down, down]
    assert warnings(caplog) == [("task failed; starting it again", "consumer")] * 2
    assert "a surprise" in caplog.text


def test_health_between_a_failure_and_the_next_start() -> None:
    """A task that has failed is down for some seconds, and the reason names the task and the error."""

    async def main() -> Health:
        failing = FailingTwice()
        running = asyncio.create_task(failing.task.run())
        await asyncio.sleep(0.5)
        health = failing.task.health
        await running
        return health

    assert in_virtual_time(main) == Health.down("consumer failed: ValueError")


def test_health_after_the_last_failure() -> None:
    """A task that goes on without an error is down for five seconds after its last failure."""

    async def main() -> list[Health]:
        failing = FailingTwice()
        failing.task._failure._monotonic = asyncio.get_running_loop().time
        await failing.task.run()
        found = []
        for seconds in (5.9, 6.1):  # it failed at 1
            await asyncio.sleep(seconds - asyncio.get_running_loop().time())
            found.append(failing.task.health)
        return found

    assert in_virtual_time(main) == [Health.down("consumer failed: ValueError"), HEALTHY]


def test_cancelled_task_is_not_started_again() -> None:
    """A cancellation ends a task."""

    async def main() -> bool:
        running = asyncio.create_task(KeptTask("consumer", lambda: asyncio.sleep(60)).run())
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        return running.cancelled()

    assert in_virtual_time(main)


def test_late_task_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """A task that is not done in time is cancelled. Tasks that are done in time are not."""

    async def main() -> tuple[bool, bool, float]:
        quick, late = (asyncio.create_task(asyncio.sleep(seconds), name=f"{seconds} s") for seconds in (3, 60))
        await finish([quick, late], 5)
        return quick.cancelled(), late.cancelled(), asyncio.get_running_loop().time()

    assert in_virtual_time(main) == (False, True, 5)
    assert warnings(caplog) == [("task not finished in time; cancelling it", "60 s")]


def test_task_that_ignores_its_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    """A task that ignores its cancellation is given up after half a second."""

    async def main() -> float:
        ended = asyncio.Event()
        stuck = asyncio.create_task(ignore_cancellation(ended), name="stuck")
        await finish([stuck], 5)
        now = asyncio.get_running_loop().time()
        ended.set()
        await stuck
        return now

    assert in_virtual_time(main) == 5.5
    assert warnings(caplog)[1] == ("task does not end; stopping without it", "stuck")


def test_error_while_a_part_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """An error while a part is closed is logged with the part and does not keep the other parts open."""

    async def fail() -> None:
        raise ConnectionError("it is gone")

    in_virtual_time(lambda: close_within(1, fail(), "broker"))
    assert warnings(caplog) == [("task failed while it was stopped", "close broker")]
    assert "ConnectionError" in str(caplog.records[0].__dict__["reason"])
