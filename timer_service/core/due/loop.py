"""The loop that runs a worker's passes: at once while there is work, else when the next work is due. What wakes it."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple, Protocol

from timer_service.core.ports.broker import Broker
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.health import HEALTHY, Health, OutageLog
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError

log = logging.getLogger(__name__)

PASS_SECONDS = 2
"""After this time a worker begins nothing else in a pass. A loop counts as one that hangs after ten seconds."""
_AFTER_FAILURE_MS = 1000
_SLOW_PASS_SECONDS = 10
_LONGEST_PASS_SECONDS = 60


class Pass(NamedTuple):
    """The result of one pass of a worker."""

    done: int
    """How many rows the pass handled."""
    next_at: int | None = None
    """When the next pass has work, in Unix milliseconds; None if no work is known."""


class Worker(Protocol):
    """An object that does work in bounded passes."""

    async def tick(self, now: int) -> Pass:
        """Do one pass at `now`."""
        ...


class Loop:
    """A task that runs ticks until it is stopped.

    Between ticks it sleeps until the earliest of three: the last pass's `next_at`, a wake, or the end of the poll
    interval. The poll interval is monotonic time: a clock that is set back does not make the loop sleep longer. A tick
    that fails is logged and retried after a second.
    """

    def __init__(
        self,
        name: str,
        worker: Worker,
        *,
        clock: Clock,
        polling_interval: timedelta,
        metrics: MetricsPort,
        outages: OutageLog | None = None,
    ) -> None:
        self.name = name
        self._worker = worker
        self._clock = clock
        self._poll_ms = polling_interval // timedelta(milliseconds=1)
        self._metrics = metrics
        self._outages = outages or OutageLog()
        self._woken = asyncio.Event()
        self._next_at: float = math.inf
        self._stopping = False
        self._pass_began: float | None = None  # of the last pass, also after its end
        self._passing = False
        self._failure: str | None = None

    @property
    def health(self) -> Health:
        """Down after a failed pass until one succeeds, and while a pass takes longer than ten seconds."""
        if self._failure is not None:
            return Health.down(f"loop {self.name} fails: {self._failure}")
        seconds = self._seconds_since_begin()
        if self._passing and seconds > _SLOW_PASS_SECONDS:
            return Health.down(f"loop {self.name} has been in one pass for {seconds:.0f} s")
        return HEALTHY

    @property
    def stalled(self) -> bool:
        """Whether the loop hangs: its last pass began more than the poll interval and a minute ago."""
        return self._seconds_since_begin() > self._poll_ms / 1000 + _LONGEST_PASS_SECONDS

    def _seconds_since_begin(self) -> float:
        """Return how long ago the last pass began; 0 before the first one."""
        return 0 if self._pass_began is None else time.monotonic() - self._pass_began

    def wake(self, at: int) -> None:
        """Wake the loop at `at`, when a row becomes available."""
        if at < self._next_at:
            self._next_at = at
            self._woken.set()

    def stop(self) -> None:
        """Finish the current tick and start no other."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Tick until stopped."""
        while not self._stopping:
            self._next_at = math.inf  # a wake during the tick sets it, and is kept
            at = await self._pass()
            self._next_at = min(self._next_at, at)
            await self._sleep()

    async def _pass(self) -> float:
        """Run one tick. Return when the next one has work: never (infinity) if none is known, soon after a failure."""
        now = self._clock.now()
        started = self._pass_began = time.monotonic()
        self._passing = True
        try:
            done, at = await self._worker.tick(now)
        except DatabaseUnavailableError as error:
            self._record(str(error), is_blocked=isinstance(error, DatabaseBlockedError))
            return now + _AFTER_FAILURE_MS
        except Exception as error:
            self._failure = error_text(error)
            log.exception("pass failed", extra={"loop": self.name})
            return now + _AFTER_FAILURE_MS
        finally:
            self._passing = False
        self._failure = None
        self._outages.record_success()
        self._metrics.ticked(self.name, time.monotonic() - started)
        if done:
            log.debug("pass done", extra={"loop": self.name, "done": done, "next_at": at})
        return math.inf if at is None else at

    def _record(self, reason: str, *, is_blocked: bool) -> None:
        """Record a pass without the database. A blocked pass is no outage: others can use the database."""
        if not is_blocked:
            self._outages.record_failure(reason, loop=self.name)
        elif self._failure is None:
            log.warning("pass blocked; retrying it every second", extra={"loop": self.name, "reason": reason})
        self._failure = reason

    async def _sleep(self) -> None:
        """Sleep until `_next_at`, for a poll interval at most. A wake may set an earlier instant meanwhile."""
        self._woken.clear()
        monotonic = asyncio.get_running_loop().time
        latest = monotonic() + self._poll_ms / 1000
        while not self._stopping:
            seconds = min((self._next_at - self._clock.now()) / 1000, latest - monotonic())
            if seconds <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
                self._woken.clear()


class Wakeups:
    """The loops to wake when rows become available. A lost hint delays work by at most a poll interval."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        polling_interval: timedelta,
        loops: Iterable[Loop],
        *,
        alone: bool,
        listeners: Mapping[str, Callable[[int], None]] | None = None,
    ) -> None:
        """`loops` are the loops of this process. `alone`: no other process can have loops that use this database.

        `listeners` get the wake-ups of a loop instead of the loop itself, by its name.
        """
        self._alone = alone
        self._broker = broker
        self._clock = clock
        self._poll_ms = polling_interval // timedelta(milliseconds=1)
        self._wakes = {**{loop.name: loop.wake for loop in loops}, **(listeners or {})}

    async def subscribe(self) -> None:
        """Subscribe to other instances' hints if they can use the same database."""
        if not self._alone:
            await self._broker.subscribe_hints(self._wake)

    async def wake(self, loops: Collection[str], at: int) -> None:
        """Wake each named loop at an instant. A loop that is not in this process gets a hint instead.

        A loop of this process gets no hint in other processes. If every command woke every instance, most wake-ups
        would find nothing.
        """
        for loop in loops:
            if loop in self._wakes:
                self._wakes[loop](at)
            elif not self._alone and at < self._clock.now() + self._poll_ms:  # their next poll finds later rows in time
                await self._broker.hint(loop, at)

    async def wake_slice(self, loops: Collection[str], at: int, loop: str | None) -> None:
        """Wake the loops of a slice, or the one that is named."""
        await self.wake(loops if loop is None else (loop,), at)

    def _wake(self, loop: str, at: int) -> None:
        """Take a hint of another instance. It may name a loop that this process does not have."""
        if loop in self._wakes:
            self._wakes[loop](at)
