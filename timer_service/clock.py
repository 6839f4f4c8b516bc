"""The clock of this machine, and time that runs on steadily although a clock jumps. See `core.ports.clock.Clock`."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_TOLERANCE = 100_000
"""Readings that deviate by at most this many microseconds are small corrections and are accepted at once."""
_AGREEMENT = 1_000_000
"""Readings of one jump differ by at most this many microseconds, because a slow database answers late."""
_PERSISTENCE = 1_000_000
"""How many microseconds a jump must last before the time follows it."""


class SteadyTime:
    """The time of a clock that may jump, as `Clock.now` describes it. All values are microseconds."""

    def __init__(self) -> None:
        self.offset: int | None = None
        """The accepted offset to the monotonic clock; None before the first reading."""
        self._jump_offset: int | None = None
        """The other offset that the newest readings showed, until the time follows it; None if they showed none."""
        self._jump_since = 0
        """The monotonic time of the first of these readings."""
        self._latest = 0
        self.set_back = 0
        """The sum of the jumps backward that the time has followed."""

    @property
    def jumping(self) -> bool:
        """Whether the newest reading deviates from the time, so that another reading must confirm it."""
        return self._jump_offset is not None

    def observe(self, offset: int, monotonic: int, slack: int = 0) -> None:
        """Accept an offset that was read at a monotonic time. One that shows a jump waits until it has lasted a second.

        `slack` is how much the clocks may have drifted apart since the last accepted reading.
        """
        if self.offset is None or abs(offset - self.offset) <= _TOLERANCE + slack:
            self.offset, self._jump_offset = offset, None
        elif self._jump_offset is None or abs(offset - self._jump_offset) > _AGREEMENT:  # the first reading of a jump
            self._jump_offset, self._jump_since = offset, monotonic
        elif monotonic - self._jump_since >= _PERSISTENCE:
            self._follow_jump(offset, jumped=offset - self.offset)

    def _follow_jump(self, offset: int, *, jumped: int) -> None:
        """Accept the offset after a jump of so many microseconds. The time may go back now."""
        self.offset, self._jump_offset = offset, None
        self._latest = 0
        if jumped < 0:
            self.set_back -= jumped
        log.warning(
            "the clock has jumped; timers follow it from now on", extra={"seconds": round(jumped / 1_000_000, 3)}
        )

    def at(self, monotonic: int) -> int:
        """Return the time at a monotonic time. It goes back only when it follows a jump."""
        assert self.offset is not None  # noqa: S101 - the owner observes a reading first
        self._latest = max(self._latest, monotonic + self.offset)
        return self._latest


def read_monotonic() -> int:
    """Return the monotonic time of this machine in microseconds."""
    return time.monotonic_ns() // 1000


def read_system() -> int:
    """Return the time of this machine's clock in microseconds since the epoch."""
    return time.time_ns() // 1000


class SystemClock:
    """The machine's clock, without its jumps and wrong readings."""

    def __init__(
        self, *, monotonic: Callable[[], int] = read_monotonic, system: Callable[[], int] = read_system
    ) -> None:
        self._monotonic = monotonic
        self._system = system
        self._time = SteadyTime()

    def now(self) -> int:
        """Return Unix milliseconds. Each call also reads the machine's clock, to see whether it has jumped."""
        monotonic = self._monotonic()
        self._time.observe(self._system() - monotonic, monotonic)
        return self._time.at(monotonic) // 1000

    @property
    def set_back_ms(self) -> int:
        """By how many milliseconds the time has gone back since the start."""
        return self._time.set_back // 1000
