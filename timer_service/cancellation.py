"""Libraries that swallow a cancellation."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError after the block if the current task was cancelled in it and the block went on.

    `asyncio.wait_for` of Python 3.11, which nats-py uses, swallows a cancellation in the moment of the result.
    """
    task = asyncio.current_task()
    cancellations = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > cancellations:
        raise asyncio.CancelledError
