"""PORT: the clock. The current time is always passed in; nothing else calls `now()`."""

import time
from typing import Protocol


class Clock(Protocol):
    """The source of the current time."""

    def now(self) -> int:
        """Return Unix milliseconds, never less than an earlier call returned."""
        ...


class SystemClock:
    """The machine's clock. It stands still while the machine's clock is set back, so a due row stays due."""

    def __init__(self) -> None:
        self._latest = 0

    def now(self) -> int:
        """Return Unix milliseconds."""
        self._latest = max(self._latest, time.time_ns() // 1_000_000)
        return self._latest
