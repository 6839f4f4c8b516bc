"""The parts of a worker at work: from the first poll until every task is finished or released."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from timer_service.worker.definition import Settings
from timer_service.worker.leases import Leases
from timer_service.worker.poller import Poller
from timer_service.worker.reporter import Reporter
from timer_service.worker.service import Send
from timer_service.worker.tasks import Tasks
from timer_service.worker.threads import Threads
from timer_service.worker.watchdog import watch_loop

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 2


async def run_worker(send: Send, settings: Settings, stop: asyncio.Event) -> None:
    """Execute workflows until `stop` is set, then finish or release every task.

    After the stop there is no new poll, and no step begins. Steps in progress may finish for `shutdown_seconds`. Their
    results are reported, and the tasks are released. If this function is cancelled, its steps are cancelled.
    """
    tasks = Tasks(settings.slots, Threads(settings.slots))
    about = send, settings, tasks
    reporter, poller, leases = Reporter(*about), Poller(*about), Leases(*about)
    background = [_start(each) for each in (reporter.run(), leases.renew(), leases.watch(), watch_loop())]
    polls = _start(poller.run())
    stopped = _start(stop.wait())
    ending = stopped
    try:
        await asyncio.wait([stopped, polls, *background], return_when=asyncio.FIRST_COMPLETED)
        tasks.drain()
        ending = _start(poller.stop())
        await _drain(polls, tasks, settings.shutdown_seconds)
    finally:
        for each in (stopped, ending, polls, *background):
            each.cancel()
        for task in tasks:
            tasks.end(task)
    for each in (polls, *background):
        if each.done() and not each.cancelled() and (error := each.exception()) is not None:
            raise error


async def _drain(polls: "asyncio.Task[None]", tasks: Tasks, seconds: float) -> None:
    """Wait until every task is finished or released, and stop the steps that take longer."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(polls)
            await tasks.until_empty()
    except TimeoutError:
        log.warning("%d tasks have steps that do not end; the tasks are released", len(tasks))
        for task in tasks:
            task.stop_steps()
            tasks.update(task)
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await tasks.until_empty()
    except TimeoutError:
        log.warning("%d tasks were not released; their leases run out", len(tasks))


def _start(part: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return asyncio.create_task(part)
