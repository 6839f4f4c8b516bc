"""The calls in progress on a connection."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from timer_service.cancellation import keep_cancellation
from timer_service.client.errors import NoAnswerError

_T = TypeVar("_T")


class Calls:
    """The calls in progress on a connection. All of them end when the connection is lost: no answer can arrive."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a call. Raises `NoAnswerError` if the connection is lost first."""
        caller = asyncio.current_task()
        cancellations = 0 if caller is None else caller.cancelling()
        task = asyncio.ensure_future(call)
        self._tasks.add(task)
        try:
            with keep_cancellation():
                return await task
        except asyncio.CancelledError:
            if caller is not None and caller.cancelling() > cancellations:
                raise
            raise NoAnswerError("the connection to the broker was lost; a command may be handled later") from None
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End the calls, because the connection is lost."""
        for task in self._tasks:
            task.cancel()
