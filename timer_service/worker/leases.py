"""Renews the leases of a worker's tasks, and ends a task whose lease must have run out."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from timer_service.worker.report import REPORT_BYTES, dump
from timer_service.worker.service import RENEW, Delays, Service, send_in_halves
from timer_service.worker.settings import Settings
from timer_service.worker.task import RunningTask
from timer_service.worker.tasks import Tasks

log = logging.getLogger(__name__)

_MOST_TASKS = 1000
_MOST_SECONDS = 25
"""A worker without requests for a minute is shown as offline."""
_MOST_STEPS = 100
"""The most steps in progress that a renewal names."""


class Leases:
    """Keeps the leases of a worker's tasks."""

    def __init__(self, service: Service, settings: Settings, tasks: Tasks) -> None:
        self._service = service
        self._settings = settings
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    async def renew(self) -> None:
        """Renew the leases of all tasks every third of their length, or every 25 s, until cancelled."""
        pause = min(self._settings.lease_seconds / 3, _MOST_SECONDS)
        next_at = self._loop.time() + pause
        while True:
            await asyncio.sleep(max(next_at - self._loop.time(), 0))
            next_at = self._loop.time() + pause
            await self._renew_all(until=next_at)

    async def watch(self) -> None:
        """End each task whose lease has run out by the clock of this process, and warn if the loop was blocked."""
        lease = self._settings.lease_seconds
        while True:
            before = self._loop.time()
            await asyncio.sleep(lease / 30)
            now = self._loop.time()
            blocked = now - before - lease / 30
            if blocked > lease / 6:
                log.warning(
                    "user code has blocked the event loop for %.1f s; leases are lost after %.0f s. "
                    "Move slow code that does not await into steps that are not async: they run in threads",
                    blocked,
                    lease,
                )
            for task in self._tasks:
                if task.lease_until <= now:
                    log.warning("the lease of the workflow %s has run out", task.workflow_id)
                    self._tasks.end(task)

    async def _renew_all(self, until: float) -> None:
        """Renew the leases of all tasks. Those without a reply are tried again, until the time of the next renewal."""
        left, delays = await self._renew_once(list(self._tasks)), Delays()
        while left and (delay := delays.next()) < until - self._loop.time():
            await asyncio.sleep(delay)
            left = await self._renew_once([each for each in left if not each.is_over])

    async def _renew_once(self, tasks: Sequence[RunningTask]) -> Sequence[RunningTask]:
        """Renew leases, and return the tasks to try again."""
        left: list[RunningTask] = []
        for batch in _batches(tasks):
            unsent = await send_in_halves(batch, self._renew)
            for (task, _), error in unsent.refused:
                log.warning("the service refuses to renew the lease of the workflow %s: %s", task.workflow_id, error)
            left += [task for task, _ in unsent.left]
        return left

    async def _renew(self, batch: Sequence[tuple[RunningTask, str]]) -> None:
        texts = ",".join(text for _, text in batch)
        body = f'{{"workerId":{dump(self._settings.worker_id)},"tasks":[{texts}]}}'.encode()
        sent = self._loop.time()
        reply = await self._service.request(RENEW, body, self._settings.request_seconds)
        lost = {(each["workflowId"], each["token"]) for each in reply.get("lost", ())}
        over = {(each["workflowId"], each["token"]): each.get("over", ()) for each in reply.get("tasks", ())}
        for task, _ in batch:
            name = task.workflow_id, task.token  # the worker may have got a newer task of the workflow meanwhile
            if task.is_over:
                continue
            if name in lost:
                self._tasks.end(task)
                continue
            task.lease_until = max(task.lease_until, sent + self._settings.lease_seconds)
            if name in over:
                self._tasks.handle(task, partial(task.waits_over, over[name], self._loop.time()))


def _batches(tasks: Sequence[RunningTask]) -> list[list[tuple[RunningTask, str]]]:
    """Return the tasks of each request, with their JSON texts."""
    batches: list[list[tuple[RunningTask, str]]] = []
    size = REPORT_BYTES
    for task in tasks:
        text = dump({"workflowId": task.workflow_id, "token": task.token, "steps": sorted(task.running)[:_MOST_STEPS]})
        size += len(text.encode())
        if size > REPORT_BYTES or len(batches[-1]) >= _MOST_TASKS:
            batches.append([])
            size = len(text.encode())
        batches[-1].append((task, text))
    return batches
