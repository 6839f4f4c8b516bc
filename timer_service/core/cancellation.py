"""Steps that a cancellation must not cut in half."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_to_completion(step: Coroutine[Any, Any, None]) -> None:
    """Await a step that must not be left half-way, even by a cancellation; that one is passed on afterwards."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
