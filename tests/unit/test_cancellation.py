"""Cancellations that a library swallows, and steps that none must interrupt."""

import asyncio

import pytest

from timer_service.cancellation import keep_cancellation, own_cancellation
from timer_service.core.ports.completion import run_to_completion


async def swallow() -> None:
    """Go on after a cancellation, as `asyncio.wait_for` of Python 3.11 does in the moment of the result."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


async def test_swallowed_cancellation() -> None:
    """A block that swallows a cancellation ends with it all the same, also if it raises another error after that."""
    went_on = []

    async def work(*, fails: bool) -> None:
        with keep_cancellation():
            await swallow()
            if fails:
                raise ConnectionError
        went_on.append(True)

    for fails in (False, True):
        task = asyncio.ensure_future(work(fails=fails))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert (task.cancelled(), went_on) == (True, [])
    with pytest.raises(ConnectionError), keep_cancellation():
        raise ConnectionError


async def test_step_of_a_task_that_is_cancelled_again_and_again() -> None:
    """The task waits for the end of its step, however often it is cancelled. Then it is cancelled."""
    may_end = asyncio.Event()
    ends = []

    async def step() -> None:
        await may_end.wait()
        ends.append("step")

    async def work() -> None:
        try:
            await run_to_completion(step())
        finally:
            ends.append("task")

    task = asyncio.ensure_future(work())
    for _ in range(4):
        await asyncio.sleep(0)
        task.cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    may_end.set()
    await asyncio.wait([task])
    assert (task.cancelled(), ends) == (True, ["step", "task"])


async def test_cancellation_of_a_driver() -> None:
    """A cancellation that a driver raises is a lost connection. The one of the task itself stays."""
    with pytest.raises(ConnectionError), own_cancellation():
        raise asyncio.CancelledError

    async def wait() -> None:
        with own_cancellation():
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    with pytest.raises(TimeoutError), own_cancellation():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
