"""Libraries that swallow a cancellation, or raise one that nobody wants."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError after the block if the current task was cancelled in it, however the block has ended.

    `asyncio.wait_for` of Python 3.11, which nats-py and redis-py use, swallows a cancellation in the moment of the
    result.
    """
    task = asyncio.current_task()
    cancellations = 0 if task is None else task.cancelling()
    try:
        yield
    except Exception:
        if task is None or task.cancelling() == cancellations:
            raise
    if task is not None and task.cancelling() > cancellations:
        raise asyncio.CancelledError


@contextmanager
def own_cancellation() -> Iterator[None]:
    """Raise ConnectionError in place of CancelledError if nobody has cancelled the current task in the block.

    aiormq cancels the calls of a connection that it loses or closes.
    """
    task = asyncio.current_task()
    cancellations = 0 if task is None else task.cancelling()
    try:
        yield
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling() > cancellations:
            raise
        raise ConnectionError("connection lost") from error
