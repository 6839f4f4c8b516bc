"""The workflow functions of the scenarios. A worker process executes them."""

import time
from typing import Any

from timer_service.worker import Context, workflow


async def read_clock() -> float:
    """Return the time in epoch milliseconds."""
    return time.time_ns() / 1_000_000


@workflow("one-step")
async def one_step(ctx: Context, _: Any) -> Any:
    """Return when the step ran."""
    return await ctx.step("step", read_clock)


@workflow("many-steps")
async def many_steps(ctx: Context, count: int) -> list[float]:
    """Run steps one after the other. Return when the first and the last one ran."""
    times = [await ctx.step("step", read_clock) for _ in range(count)]
    return [times[0], times[-1]]
