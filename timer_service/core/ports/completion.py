"""Finishing a step although its task is cancelled."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_to_completion(step: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
    """Finish `step` even if the current task is cancelled, once or more, then re-raise. Return its result."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # cancelled again; the first one is raised
                await asyncio.wait([task])
        raise
