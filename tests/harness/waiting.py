"""Waits for a condition."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 30, pause: float = 0.005) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(pause)
