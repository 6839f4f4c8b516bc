"""Computing in slices: queries that compute for long leave a part of the event loop to commands and events."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Work in steps of a few milliseconds at most: other tasks may run at each `yield`."""

_SLICE_SECONDS = 0.005
_SHORTEST_REST = 0.002
"""Shorter rests are added up."""


class Computing:
    """The computing of all queries of an instance. One query computes at a time, in slices of 5 ms.

    Before the next slice, other tasks have the event loop for as long as the last one took. A single step
    may take longer.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._rests_until = 0.0

    @asynccontextmanager
    async def slice(self) -> AsyncIterator[None]:
        """Wait for the turn to compute, which lasts until the block ends. The block does not await."""
        async with self._lock:
            if (rest := self._rests_until - self._monotonic()) >= _SHORTEST_REST:
                await self._sleep(rest)
            began = self._monotonic()
            try:
                yield
            finally:
                took = self._monotonic() - began
                self._rests_until = max(self._rests_until, began) + 2 * took

    async def run(self, steps: Steps[_T]) -> _T:
        """Return the result of work. Other queries and other tasks get their turns in between."""
        while True:
            async with self.slice():
                until = self._monotonic() + _SLICE_SECONDS
                try:
                    next(steps)  # each slice has one step at least
                    while self._monotonic() < until:
                        next(steps)
                except StopIteration as stop:
                    result: _T = stop.value
                    return result
