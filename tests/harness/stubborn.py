"""Code of users that goes on after a cancellation, in every way that Python has. Programs of tests import it, too."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from timer_service.worker import Context, Retry, workflow

LONG = 10_000.0
SECONDS = 0.5
"""The timeout of a step."""


async def returns_later() -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(LONG)
    await asyncio.sleep(3)
    return "late"


async def returns_at_once() -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(LONG)
    return "late"


async def raises_another_error() -> None:
    try:
        await asyncio.sleep(LONG)
    except asyncio.CancelledError:
        raise ValueError("late") from None


async def loops() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG)


async def catches_everything() -> None:
    while True:
        try:
            await asyncio.sleep(LONG)
        except:  # noqa: E722 - the point of it
            continue


async def waits_in_finally() -> None:
    try:
        await asyncio.sleep(LONG)
    finally:
        await loops()


async def shields() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.shield(loops())


async def has_a_stubborn_child() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(loops())


async def gathers() -> None:
    await asyncio.gather(loops(), catches_everything())


async def uncancels() -> None:
    task = asyncio.current_task()
    assert task is not None
    while True:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            task.uncancel()


async def _numbers() -> AsyncIterator[int]:
    try:
        yield 1
        await asyncio.sleep(LONG)
    finally:
        await loops()


async def leaves_a_generator() -> None:
    async for _ in _numbers():
        pass


async def closes_a_generator() -> None:
    numbers: Any = _numbers()
    await anext(numbers)
    await numbers.aclose()


async def nests_timeouts() -> None:
    while True:
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(0.1), asyncio.timeout(LONG):
                await asyncio.sleep(LONG)


async def waits_for_another() -> None:
    await asyncio.wait_for(loops(), timeout=0.1)


def returns_an_awaitable() -> Awaitable[None]:
    return loops()


def sleeps_in_a_thread() -> None:
    time.sleep(LONG)


async def sleeps_in_a_thread_of_asyncio() -> None:
    await asyncio.to_thread(time.sleep, LONG)


WAYS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        returns_later,
        returns_at_once,
        raises_another_error,
        loops,
        catches_everything,
        waits_in_finally,
        shields,
        has_a_stubborn_child,
        gathers,
        uncancels,
        leaves_a_generator,
        closes_a_generator,
        nests_timeouts,
        waits_for_another,
    )
}
IN_THREADS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (returns_an_awaitable, sleeps_in_a_thread, sleeps_in_a_thread_of_asyncio)
}
"""These need real time, because they need threads."""


@workflow("stubborn")
async def stubborn(ctx: Context, way: str) -> None:
    """Fail at the timeout of a step that does not end."""
    step = {**WAYS, **IN_THREADS}[way]
    await ctx.step(way, step, timeout=timedelta(seconds=SECONDS), retry=Retry(max_attempts=1))


@workflow("endless")
async def endless(ctx: Context, way: str) -> None:
    """Run a step that does not end, without a timeout."""
    await ctx.step(way, {**WAYS, **IN_THREADS}[way])


@workflow("blocking")
async def blocking(ctx: Context, seconds: float) -> None:
    """Block the event loop of the worker."""

    async def block() -> None:
        print("blocks", flush=True)
        time.sleep(seconds)  # noqa: ASYNC251 - the point of it

    await ctx.step("block", block, timeout=timedelta(seconds=SECONDS), retry=Retry(max_attempts=1))
