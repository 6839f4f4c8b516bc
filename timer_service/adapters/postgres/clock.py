"""One clock for all instances: an estimate of the database's clock that is never ahead of it."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from timer_service.core.loop import Pass

_SAMPLES = 5
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
    return elapsed * _DRIFT_PER_SECOND // 1_000_000


class _ClockSource(Protocol):
    async def clock_at(self) -> int: ...


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


def _system() -> int:
    return time.time_ns() // 1000


class PostgresClock:
    """A clock that follows the database's clock and is never ahead of it.

    A `Loop` measures the offset regularly through `tick`. In between, the clock uses this machine's monotonic clock.
    The system clock of this machine does not matter.
    """

    def __init__(
        self,
        database: _ClockSource,
        observe: Callable[[float], None],
        *,
        monotonic: Callable[[], int] = _monotonic,
        system: Callable[[], int] = _system,
    ) -> None:
        """After each measurement `observe` gets the seconds that the database's clock is ahead of the system clock."""
        self._database = database
        self._observe = observe
        self._monotonic = monotonic
        self._system = system
        self._offset: int | None = None
        self._measured_at = 0
        self._latest = 0

    def now(self) -> int:
        """Return epoch milliseconds. Call it only after the first measurement."""
        assert self._offset is not None  # noqa: S101 - `open_storage` measures first
        at = self._monotonic()
        bound = at + self._offset - _drift(at - self._measured_at)
        self._latest = max(self._latest, bound // 1000)
        return self._latest

    async def measure(self) -> None:
        """Measure the offset. Raises `DatabaseUnavailableError`; the old offset then stays in use."""
        samples = [await self._sample() for _ in range(_SAMPLES)]
        now = self._monotonic()
        self._offset = compute_offset(self._offset, now - self._measured_at, samples)
        self._measured_at = now
        self._observe((now + self._offset - self._system()) / 1_000_000)

    async def tick(self, _now: int) -> Pass:
        """Measure the offset once."""
        await self.measure()
        return Pass(0)

    async def _sample(self) -> Sample:
        asked_at = self._monotonic()
        reading = await self._database.clock_at()
        return Sample(asked_at, reading, self._monotonic())
