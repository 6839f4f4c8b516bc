"""The loop around a worker's tick: again at once while there is work, else asleep until something is due."""

import asyncio
import logging
import math
import time
from datetime import timedelta
from typing import NamedTuple, Protocol

from timer_service.core.clock import Clock
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.metrics_port import MetricsPort

log = logging.getLogger(__name__)

_AFTER_FAILURE_MS = 1000
_LONGEST_PASS_SECONDS = 60


class Pass(NamedTuple):
    """What one pass of a worker did."""

    done: int
    """How many rows it handled."""
    next_at: int | None = None
    """When the next pass has work, in epoch milliseconds; None if no work is known."""


class Worker(Protocol):
    """Does bounded passes of work."""

    async def tick(self, now: int) -> Pass:
        """Make one pass at `now`."""
        ...


class Loop:
    """Runs ticks until stopped. Sleeps until the last pass's `next_at`, a wake or the poll interval: the earliest.

    A failing tick is logged and tried again: the loop never ends by itself.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        *,
        clock: Clock,
        polling_interval: timedelta,
        metrics: MetricsPort,
    ) -> None:
        self.name = name
        self._worker = worker
        self._clock = clock
        self._poll_ms = polling_interval // timedelta(milliseconds=1)
        self._metrics = metrics
        self._gate = asyncio.Event()
        self._armed_at: float = math.inf
        self._stopping = False
        self._turned_at = time.monotonic()

    @property
    def stalled(self) -> bool:
        """Whether no pass has begun for longer than sleeping and ticking can take."""
        return time.monotonic() - self._turned_at > self._poll_ms / 1000 + _LONGEST_PASS_SECONDS

    def wake(self, at: int) -> None:
        """Say that something becomes available at `at`."""
        if at < self._armed_at:
            self._armed_at = at
            self._gate.set()

    def stop(self) -> None:
        """Finish the tick under way, start no other."""
        self._stopping = True
        self._gate.set()

    async def run(self) -> None:
        """Tick until stopped."""
        while not self._stopping:
            self._armed_at = math.inf  # wakes that arrive from here on are kept, whatever the tick finds
            wanted_at = await self._pass()
            self._armed_at = min(self._armed_at, wanted_at)
            await self._sleep()

    async def _pass(self) -> int:
        now = self._clock.now()
        started = self._turned_at = time.monotonic()
        try:
            done, at = await self._worker.tick(now)
        except DatabaseUnavailableError as error:
            log.warning("the database is not available", extra={"loop": self.name, "reason": str(error)})
            return now + _AFTER_FAILURE_MS
        except Exception:
            log.exception("tick failed", extra={"loop": self.name})
            return now + _AFTER_FAILURE_MS
        self._metrics.ticked(self.name, time.monotonic() - started)
        if done:
            log.debug("pass", extra={"loop": self.name, "done": done, "next_at": at})
        latest = self._clock.now() + self._poll_ms
        return latest if at is None else min(at, latest)

    async def _sleep(self) -> None:
        self._gate.clear()
        while not self._stopping and (wait_ms := self._armed_at - self._clock.now()) > 0:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._gate.wait()
            except TimeoutError:
                continue
            self._gate.clear()
