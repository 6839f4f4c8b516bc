"""Tasks that are cancelled: work that must end first, and libraries that swallow a cancellation."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

_T = TypeVar("_T")


@contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError after the block if the current task was cancelled in it and the block went on.

    `asyncio.wait_for` of Python 3.11, which nats-py uses, swallows a cancellation in the moment of the result.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError


async def run_to_completion(step: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
    """Finish `step` even if the current task is cancelled, once or more, then re-raise. Return its result."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
