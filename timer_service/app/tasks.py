"""The tasks and loops of an instance: started again after an unexpected error, and stopped in bounded time."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any

from timer_service.cancellation import own_cancellation
from timer_service.core.due.loop import Loop, Worker
from timer_service.core.ports.health import Health, OutageLog, RecentFailure
from timer_service.core.service.slice import Parts
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

_RESTART_SECONDS = 1
_UNHEALTHY_SECONDS = 5
"""Longer than the time to the next start, so that a task that fails again and again is down all the time."""
_CANCELLATION_SECONDS = 0.5


def build_loop(
    parts: Parts, name: str, worker: Worker, polling_interval: timedelta, *, is_of_database: bool = True
) -> Loop:
    """Return a loop of an instance. `is_of_database`: its passes show whether the database is available."""
    outages = parts.outages if is_of_database else OutageLog()
    return Loop(
        name, worker, clock=parts.clock, polling_interval=polling_interval, metrics=parts.metrics, outages=outages
    )


class KeptTask:
    """A task that is started again a second after an unexpected error: a bug, or a surprise of a driver."""

    def __init__(
        self, name: str, run: Callable[[], Coroutine[Any, Any, None]], *, after: asyncio.Event | None = None
    ) -> None:
        """`after`: the task waits for this event before it begins."""
        self.name = name
        self._after = after
        self._run = run
        self._failure = RecentFailure(_UNHEALTHY_SECONDS)

    @property
    def health(self) -> Health:
        """Down for some seconds after a failure."""
        return self._failure.health

    async def run(self) -> None:
        """Run until the function returns."""
        if self._after is not None:
            await self._after.wait()
        while True:
            try:
                with own_cancellation():
                    await self._run()
            except Exception as error:
                log.exception("task failed; starting it again", extra={"task": self.name})
                self._failure.record(f"{self.name} failed: {error_text(error)}")
                await asyncio.sleep(_RESTART_SECONDS)
            else:
                return


async def finish(tasks: Collection[asyncio.Task[None]], seconds: float) -> None:
    """Wait for tasks. Cancel those that are not done after `seconds`, and give up those that ignore it.

    Errors are logged.
    """
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        log.warning("task not finished in time; cancelling it", extra={"task": task.get_name()})
        task.cancel()
    stuck: set[asyncio.Task[None]] = set()
    if late:
        _, stuck = await asyncio.wait(late, timeout=_CANCELLATION_SECONDS)
    for task in tasks:
        if task in stuck:
            log.error("task does not end; stopping without it", extra={"task": task.get_name()})
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.warning(
                "task failed while it was stopped", extra={"task": task.get_name(), "reason": error_text(error)}
            )


async def close_within(seconds: float, closing: Coroutine[Any, Any, None], part: str) -> None:
    """Close a part, and give up after `seconds`. An error is logged, because the other parts must be closed too."""
    await finish([asyncio.create_task(closing, name=f"close {part}")], seconds)
