"""One clock for all instances: an estimate of the database's clock that is never ahead of it."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from timer_service.clock import SteadyTime, read_monotonic, read_system
from timer_service.core.due.loop import Pass

_SAMPLES = 5
_JUMP_CHECK_MS = 250
"""How soon to measure again after a measurement that shows a jump."""
_DRIFT_PER_SECOND = 200
"""How fast two clocks may drift apart, in microseconds per second: twice the drift of a bad quartz."""


class Sample(NamedTuple):
    """One reading of the database's clock, in microseconds.

    `asked_at` and `answered_at` are times of this machine's monotonic clock. The reading was taken between them.
    """

    asked_at: int
    reading: int
    answered_at: int


def compute_offset(known: int | None, elapsed: int, samples: list[Sample]) -> int:
    """Return how many microseconds to add to the own clock so that it is never ahead of the database's clock.

    When an answer arrives, the database's clock is past the reading. So each sample gives a lower bound of the offset.
    The highest bound is the best. The bound `known` for `elapsed` microseconds still holds after the possible drift is
    subtracted. It does not hold if a sample shows that the database's clock was set back.
    """
    lower_bound = max(sample.reading - sample.answered_at for sample in samples)
    upper_bound = min(sample.reading - sample.asked_at for sample in samples)
    if known is None:
        return lower_bound
    still_known = known - _drift(elapsed)
    return lower_bound if still_known > upper_bound else max(lower_bound, still_known)


def _drift(elapsed: int) -> int:
    """Return how far two clocks may drift apart in a time, in microseconds."""
    return elapsed * _DRIFT_PER_SECOND // 1_000_000


class PostgresClock:
    """A clock that follows the database's clock and is never ahead of it, except for about a second after a set-back.

    A `Loop` measures the offset regularly through `tick`. In between, the clock uses this machine's monotonic clock.
    The system clock of this machine does not matter.
    """

    def __init__(
        self,
        read_clock: Callable[[], Awaitable[int]],
        observe: Callable[[float], None],
        *,
        monotonic: Callable[[], int] = read_monotonic,
        system: Callable[[], int] = read_system,
    ) -> None:
        """`read_clock` returns the time of the database's clock in Unix microseconds.

        After each measurement, `observe` gets the seconds that the database's clock is ahead of the system clock.
        """
        self._read_clock = read_clock
        self._observe = observe
        self._monotonic = monotonic
        self._system = system
        self._time = SteadyTime()
        self._measured_at = 0

    def now(self) -> int:
        """Return epoch milliseconds. Call it only after the first measurement."""
        at = self._monotonic()
        return self._time.at(at - _drift(at - self._measured_at)) // 1000

    @property
    def set_back_ms(self) -> int:
        """By how many milliseconds the time has gone back since the start."""
        return self._time.set_back // 1000

    async def measure(self) -> None:
        """Measure the offset. Raises `DatabaseUnavailableError`; the old offset then stays in use."""
        samples = []
        for _ in range(_SAMPLES):
            asked_at = self._monotonic()
            samples.append(Sample(asked_at, await self._read_clock(), self._monotonic()))
        now = self._monotonic()
        elapsed = now - self._measured_at
        offset = compute_offset(self._time.offset, elapsed, samples)
        self._time.observe(offset, now, slack=_drift(elapsed))
        if not self._time.jumping:  # otherwise the time does not follow this measurement yet
            self._measured_at = now
        ahead = now + offset - self._system()
        self._observe(ahead / 1_000_000)

    async def tick(self, _now: int) -> Pass:
        """Measure the offset once. If the database's clock seems to have jumped, measure again soon."""
        await self.measure()
        return Pass(0, self.now() + _JUMP_CHECK_MS if self._time.jumping else None)
