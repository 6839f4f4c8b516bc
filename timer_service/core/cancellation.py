"""Steps that a cancellation must not interrupt."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_to_completion(step: Coroutine[Any, Any, _T]) -> _T:
    """Finish `step` even if the current task is cancelled, then re-raise the cancellation. Return its result."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
