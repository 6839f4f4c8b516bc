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
"""Shorter rests are added up: a sleep is not more exact than a millisecond."""


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
        self._owed = 0.0
        """How long the queries have to rest, counted from the end of the last slice."""
        self._ended = monotonic()

    @asynccontextmanager
    async def slice(self) -> AsyncIterator[None]:
        """Wait for the turn to compute, which lasts until the block ends. The block does not await."""
        async with self._lock:
            await self._rest()
            began = self._monotonic()
            try:
                yield
            finally:
                self._ended = self._monotonic()
                self._owed += self._ended - began

    async def run(self, steps: Steps[_T]) -> _T:
        """Return the result of work. Other queries and other tasks get their turns in between."""
        while True:
            async with self.slice():
                until = self._monotonic() + _SLICE_SECONDS
                try:
                    next(steps)
                    while self._monotonic() < until:
                        next(steps)
                except StopIteration as stop:
                    result: _T = stop.value
                    return result

    async def _rest(self) -> None:
        self._owed = max(self._owed - (self._monotonic() - self._ended), 0.0)
        if self._owed >= _SHORTEST_REST:
            owed, self._owed = self._owed, 0.0
            await self._sleep(owed)
        self._ended = self._monotonic()
