"""Calls of many tasks, which go to the server together over one connection."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from timer_service.cancellation import keep_cancellation
from timer_service.core.values.parts import split
from timer_service.redis_client import ERRORS, RedisClient

_MOST_CALLS = 500
_MOST_BYTES = 4 * 1024 * 1024

Call = Callable[[Any], object]
"""Adds one command to a pipeline of the driver."""


class _Waiting(NamedTuple):
    call: Call
    size: int
    result: "asyncio.Future[Any]"


class Pipe:
    """Sends calls in their order. All that wait go together, because a round trip costs far more than a call."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._waiting: list[_Waiting] = []
        self._results: set[asyncio.Future[Any]] = set()
        """The results that are still to come."""
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def send(self, call: Call, size: int = 0) -> "asyncio.Future[Any]":
        """Return the future result of a call. It raises one of `ERRORS`, and is cancelled when the pipe is closed.

        `size`: the bytes of the call, if many.
        """
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            result.cancel()
            return result
        self._results.add(result)
        result.add_done_callback(self._results.discard)
        self._waiting.append(_Waiting(call, size, result))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return result

    async def close(self) -> None:
        """Send no more."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        for result in list(self._results):
            result.cancel()

    async def _send(self) -> None:
        """Send calls until none waits."""
        while self._waiting:
            calls, self._waiting = self._waiting, []
            for part in split(calls, lambda each: each.size, max_count=_MOST_CALLS, max_bytes=_MOST_BYTES):
                pipeline = self._client.pipeline(transaction=False)
                for each in part:
                    each.call(pipeline)
                results: list[Any]
                try:
                    with keep_cancellation():
                        results = await pipeline.execute(raise_on_error=False)
                except ERRORS as error:
                    results = [error] * len(part)
                for each, result in zip(part, results, strict=True):
                    if each.result.done():
                        continue
                    if isinstance(result, Exception):
                        each.result.set_exception(result)
                    else:
                        each.result.set_result(result)
