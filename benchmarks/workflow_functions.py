"""The workflow functions of the scenarios. A worker process executes them."""

import time
from datetime import timedelta
from typing import Any

from timer_service.worker import Context, workflow


async def read_clock() -> float:
    """Return the time in epoch milliseconds."""
    return time.time_ns() / 1_000_000


async def milliseconds_until(instant: int) -> float:
    """Return how long it is until an instant in epoch milliseconds."""
    return max(instant - await read_clock(), 0)


@workflow("one-step")
async def one_step(ctx: Context, _: Any) -> Any:
    """Return when the step ran."""
    return await ctx.step("step", read_clock)


@workflow("many-steps")
async def many_steps(ctx: Context, count: int) -> list[float]:
    """Run steps one after the other. Return when the first and the last one ran."""
    times = [await ctx.step("step", read_clock) for _ in range(count)]
    return [times[0], times[-1]]


@workflow("sleeper")
async def sleeper(ctx: Context, until: int) -> Any:
    """Sleep until an instant. Return when the step after that ran."""
    await ctx.sleep(timedelta(milliseconds=await ctx.step("left", milliseconds_until, until)))
    return await ctx.step("step", read_clock)
