"""Turns: long work on many messages lets the other tasks of the event loop run in between."""

import asyncio


class Turns:
    """The turns of one task. It works on a limited number of bytes in each turn; a single message may have more."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._used = 0

    async def take(self, size: int) -> None:
        """Let other tasks run first if work on `size` more bytes is too much for this turn."""
        self._used += size
        if self._used > self._most_bytes:
            await asyncio.sleep(0)
            self._used = size
