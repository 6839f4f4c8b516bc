"""Time is an argument: one injected clock, no `now()` anywhere else."""

import time
from typing import Protocol


class Clock(Protocol):
    """Says what time it is."""

    def now(self) -> int:
        """Return epoch milliseconds; never less than an earlier answer."""
        ...


class SystemClock:
    """The machine's clock, held still while it is set back: a row found due stays due."""

    def __init__(self) -> None:
        self._latest = 0

    def now(self) -> int:
        """Return epoch milliseconds."""
        self._latest = max(self._latest, time.time_ns() // 1_000_000)
        return self._latest
