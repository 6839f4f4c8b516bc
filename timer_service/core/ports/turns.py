"""Turns: long work on many messages lets the other tasks of the event loop run in between."""

import asyncio
import time
from collections.abc import Callable

_LONGEST_SECONDS = 0.001
LONG_SECONDS = 0.005
"""With pauses, the other tasks run after a turn that took longer."""
_LONGEST_PAUSE_SECONDS = 0.5
"""No message takes longer. If a turn did, the process was stopped meanwhile, as by `docker pause`."""
TRANSACTION_SECONDS = 0.05
"""How long a transaction applies commands."""


class Turns:
    """The turns of one task. It works on a limited number of bytes in each turn, for 1 ms at most.

    A single message may have more bytes and take longer. With `pauses`, the other tasks run after it for as long.
    """

    def __init__(self, most_bytes: int, *, pauses: bool = False) -> None:
        self._most_bytes = most_bytes
        self._pauses = pauses
        self._used = 0
        self._began = time.perf_counter()

    async def take(self, size: int) -> None:
        """Let other tasks run first if work on `size` more bytes is too much for this turn, or its time is up."""
        if self.count(size):
            await self.begin(size)

    def count(self, size: int) -> bool:
        """Count `size` more bytes. Return whether to await `begin` with them first. This is quicker than `take`."""
        self._used += size
        return self._used > self._most_bytes or time.perf_counter() - self._began > _LONGEST_SECONDS

    async def begin(self, size: int) -> None:
        """Let other tasks run, and begin the next turn with work on `size` bytes."""
        took = time.perf_counter() - self._began
        pause = min(took, _LONGEST_PAUSE_SECONDS) if self._pauses and took > LONG_SECONDS else 0
        await asyncio.sleep(pause)
        self._used = size
        self._began = time.perf_counter()


class TransactionTime:
    """The time in which a transaction applies commands: 50 ms, with turns of 1 ms. `monotonic` returns seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began: float | None = None
        self._turn_began = 0.0

    async def is_left(self) -> bool:
        """Return whether to apply one more command; true at first. It lets other tasks run: not for `Database.run`."""
        now = self._monotonic()
        if self._began is None:
            self._began = self._turn_began = now
            return True
        if now - self._began > TRANSACTION_SECONDS:
            return False
        if now - self._turn_began > _LONGEST_SECONDS:
            await asyncio.sleep(0)
            self._turn_began = self._monotonic()
        return True
