"""Tasks that are started again after an error, and that are stopped in bounded time."""

import asyncio
import logging

import pytest

from tests.harness.clock import in_virtual_time
from timer_service.app.tasks import KeptTask, close_within, finish
from timer_service.core.ports.health import HEALTHY, Health


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    """Return the logged warnings and errors, each with the task that it names."""
    return [(each.message, each.__dict__.get("task")) for each in caplog.records if each.levelno >= logging.WARNING]


def test_failed_task_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """A task that fails is logged with its name and its error, and runs again after a second. It is down meanwhile."""

    async def main() -> tuple[list[float], list[Health]]:
        started_at: list[float] = []

        async def fail_twice() -> None:
            healths.append(task.health)
            started_at.append(asyncio.get_running_loop().time())
            if len(started_at) <= 2:
                raise ValueError("a surprise")

        task, healths = KeptTask("consumer", fail_twice), list[Health]()
        await task.run()
        return started_at, healths

    started_at, healths = in_virtual_time(main)
    down = Health.down("consumer failed: ValueError")
    assert (started_at, healths) == ([0, 1, 2], [HEALTHY, down, down])
    assert warnings(caplog) == [("task failed; starting it again", "consumer")] * 2
    assert "a surprise" in caplog.text


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
    """A task that is not done in time is cancelled, and given up half a second later. Others are not."""

    async def main() -> tuple[bool, bool, float]:
        ended = asyncio.Event()

        async def ignore_cancellation() -> None:
            while not ended.is_set():
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    continue

        quick, late = (asyncio.create_task(asyncio.sleep(seconds), name=f"{seconds} s") for seconds in (3, 60))
        stuck = asyncio.create_task(ignore_cancellation(), name="stuck")
        await finish([quick, late, stuck], 5)
        now = asyncio.get_running_loop().time()
        ended.set()
        await stuck
        return quick.cancelled(), late.cancelled(), now

    assert in_virtual_time(main) == (False, True, 5.5)
    late = "task not finished in time; cancelling it"
    assert set(warnings(caplog)) == {
        *((late, name) for name in ("60 s", "stuck")),
        ("task does not end; stopping without it", "stuck"),
    }


def test_error_while_a_part_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """An error while a part is closed is logged with the part and does not keep the other parts open."""

    async def fail() -> None:
        raise ConnectionError("it is gone")

    in_virtual_time(lambda: close_within(1, fail(), "broker"))
    assert warnings(caplog) == [("task failed while it was stopped", "close broker")]
    assert "ConnectionError" in str(caplog.records[0].__dict__["reason"])
