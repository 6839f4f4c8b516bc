"""PORT: the clock. The current time is always passed in; nothing else calls `now()`."""

from typing import Protocol


class Clock(Protocol):
    """The source of the current time."""

    def now(self) -> int:
        """Return Unix milliseconds.

        One wrong reading of the underlying clock changes nothing. If that clock jumps by more than 0.1 s, the time runs
        on as if it had not jumped, until readings have shown the jump for a second. Then the time follows the jump,
        forward or backward. Otherwise the time never goes back.
        """

    @property
    def set_back_ms(self) -> int:
        """By how many milliseconds the time has gone back since the start, all jumps together."""
