"""The parts of a worker at work: from the first poll until every task is finished or released."""

import asyncio
import logging
from typing import Any

from timer_service.user_code import UserCode
from timer_service.watchdog import watch_loop
from timer_service.worker.definition import Settings
from timer_service.worker.leases import Leases
from timer_service.worker.poller import Poller
from timer_service.worker.reporter import Reporter
from timer_service.worker.service import Send
from timer_service.worker.tasks import Tasks

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 2
_MOST_NAMES = 20


async def run_worker(send: Send, settings: Settings, stop: asyncio.Event) -> None:
    """Execute workflows until `stop` is set, then finish or release every task.

    After the stop there is no new poll, and no step begins. Steps in progress may finish for `shutdown_seconds`. Their
    results are reported, and the tasks are released. If this function is cancelled, its steps are cancelled. It does
    not wait for steps that ignore their cancellation.
    """
    code = UserCode(settings.slots)
    tasks = Tasks(settings.slots, code)
    poller, leases = Poller(send, settings, tasks), Leases(send, settings, tasks)
    polls = asyncio.create_task(poller.run())
    watching = watch_loop("all workflows of this worker wait")
    parts = [Reporter(send, settings, tasks).run(), leases.renew(), leases.watch(), watching, stop.wait()]
    running: list[asyncio.Task[Any]] = [polls, *map(asyncio.create_task, parts)]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)  # the stop, or an error of a part
        tasks.drain()
        running.append(asyncio.create_task(poller.stop()))
        await _drain(polls, tasks, settings.shutdown_seconds, code)
    finally:
        for part in running:
            part.cancel()
        for task in tasks:
            tasks.end(task)
        await code.close()
    for part in running:
        if part.done() and not part.cancelled() and (error := part.exception()) is not None:
            raise error


async def _drain(polls: "asyncio.Task[None]", tasks: Tasks, seconds: float, code: UserCode) -> None:
    """Wait until every task is finished or released, for `seconds`. Then stop the steps, so that their tasks are."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(polls)  # the last poll may bring tasks
            await tasks.until_empty()
    except TimeoutError:
        names = ", ".join(code.names[:_MOST_NAMES])
        log.warning("%d tasks are released although their steps have not ended: %s", len(tasks), names)
        for task in tasks:
            task.stop_steps()
            tasks.update(task)
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await tasks.until_empty()
    except TimeoutError:
        log.warning("%d tasks were not released; their leases run out", len(tasks))
