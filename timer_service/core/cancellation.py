"""Steps that a cancellation must not interrupt."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_to_completion(step: Coroutine[Any, Any, None]) -> None:
    """Finish `step` even if the current task is cancelled, then re-raise the cancellation."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
