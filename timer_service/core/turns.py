"""Turns: long work on many messages lets the other tasks of the event loop run in between."""

import asyncio
import time

_LONGEST_SECONDS = 0.005


class Turns:
    """The turns of one task. It works on a limited number of bytes in each turn, for 5 ms at most.

    A single message may have more bytes and take longer.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._used = 0
        self._began = time.perf_counter()

    async def take(self, size: int) -> None:
        """Let other tasks run first if work on `size` more bytes is too much for this turn, or its time is up."""
        self._used += size
        if self._used > self._most_bytes or time.perf_counter() - self._began > _LONGEST_SECONDS:
            await asyncio.sleep(0)
            self._used = size
            self._began = time.perf_counter()
