"""One clock for the fleet: the database's, as every instance can tell it without asking each time."""

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from timer_service.core.loop import Pass

_SAMPLES = 5
_DRIFT_PER_SECOND = 200
"""How fast two machines' clocks may part, in microseconds: twice what a bad quartz does."""


class Sample(NamedTuple):
    """The database's clock, read some time between asking and hearing of it; all in microseconds."""

    asked_at: int
    read: int
    heard_at: int


def narrowed(known: int | None, elapsed: int, samples: list[Sample]) -> int:
    """Return how much to add to the own clock, in microseconds, so that it never runs ahead of the database's.

    By the time a reading is heard the database's clock is past it: each sample gives a lower bound, the highest is the
    best. What was `known` as a lower bound `elapsed` microseconds ago still is one, less what clocks drift, unless a
    sample shows that the database's clock was set back.
    """
    lowest = max(sample.read - sample.heard_at for sample in samples)
    highest = min(sample.read - sample.asked_at for sample in samples)
    if known is None:
        return lowest
    still_known = known - _drift(elapsed)
    return lowest if still_known > highest else max(lowest, still_known)


def _drift(elapsed: int) -> int:
    return elapsed * _DRIFT_PER_SECOND // 1_000_000


class _HasClock(Protocol):
    async def clock_at(self) -> int: ...


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


def _system() -> int:
    return time.time_ns() // 1000


class PostgresClock:
    """The database's clock, never ahead of it, however this machine's own is set.

    Its ticks measure anew, for a `Loop` to make regularly; between them it goes by the machine's monotonic clock.
    """

    def __init__(
        self,
        database: _HasClock,
        observe: Callable[[float], None],
        *,
        monotonic: Callable[[], int] = _monotonic,
        system: Callable[[], int] = _system,
    ) -> None:
        """`observe` is told by how many seconds the database's clock is ahead of this machine's."""
        self._database = database
        self._observe = observe
        self._monotonic = monotonic
        self._system = system
        self._offset: int | None = None
        self._measured_at = 0
        self._latest = 0

    def now(self) -> int:
        """Return epoch milliseconds; call it only after the first measurement."""
        assert self._offset is not None  # noqa: S101 - `open` measures
        at = self._monotonic()
        bound = at + self._offset - _drift(at - self._measured_at)
        self._latest = max(self._latest, bound // 1000)
        return self._latest

    async def measure(self) -> None:
        """Ask the database. Raises `DatabaseUnavailableError`; then what was known stays."""
        samples = [await self._sample() for _ in range(_SAMPLES)]
        now = self._monotonic()
        self._offset = narrowed(self._offset, now - self._measured_at, samples)
        self._measured_at = now
        self._observe((now + self._offset - self._system()) / 1_000_000)

    async def tick(self, _now: int) -> Pass:
        """Measure once."""
        await self.measure()
        return Pass(0)

    async def _sample(self) -> Sample:
        asked_at = self._monotonic()
        read = await self._database.clock_at()
        return Sample(asked_at, read, self._monotonic())
