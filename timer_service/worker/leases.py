"""Renews the leases of a worker's tasks, and ends a task whose lease must have run out."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from timer_service.worker.definition import Settings
from timer_service.worker.report import dump
from timer_service.worker.service import RENEW, Send, send_in_halves
from timer_service.worker.task import RunningTask
from timer_service.worker.tasks import Tasks

log = logging.getLogger(__name__)

_MOST_TASKS = 500
"""The most tasks of a request. With the longest ids they have about 400 KiB."""
_AGAIN_SECONDS = 1
_MOST_SECONDS = 25
"""A worker without requests for a minute is shown as offline."""


class Leases:
    """Keeps the leases of a worker's tasks."""

    def __init__(self, send: Send, settings: Settings, tasks: Tasks) -> None:
        self._send = send
        self._settings = settings
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    async def renew(self) -> None:
        """Renew the leases of all tasks every third of their length, or every 25 s, until cancelled.

        Those without a reply are tried again after a second, until the next turn of all.
        """
        pause = min(self._settings.lease_seconds / 3, _MOST_SECONDS)
        while True:
            next_at = self._loop.time() + pause
            unrenewed = await self._renew_all(list(self._tasks))
            while unrenewed and self._loop.time() + _AGAIN_SECONDS < next_at:
                await asyncio.sleep(_AGAIN_SECONDS)
                unrenewed = await self._renew_all([each for each in unrenewed if not each.is_over])
            await asyncio.sleep(max(next_at - self._loop.time(), 0))

    async def watch(self) -> None:
        """End each task whose lease has run out by the clock of this process."""
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 30)
            for task in self._tasks:
                if task.lease_until <= self._loop.time():
                    log.warning("the lease of the workflow %s has run out", task.workflow_id)
                    self._tasks.end(task)

    async def _renew_all(self, tasks: Sequence[RunningTask]) -> Sequence[RunningTask]:
        """Renew leases, and return the tasks to try again. A task that is refused alone is not tried again."""
        left: list[RunningTask] = []
        for start in range(0, len(tasks), _MOST_TASKS):
            unsent = await send_in_halves(tasks[start : start + _MOST_TASKS], self._renew)
            for task, error in unsent.refused:
                log.warning("the service refuses to renew the lease of the workflow %s: %s", task.workflow_id, error)
            left += unsent.left
        return left

    async def _renew(self, batch: Sequence[RunningTask]) -> None:
        """Send one request. End the tasks that the service calls lost. Give others their waits that are over.

        A task that the answer does not name is renewed.
        """
        held = [{"workflowId": task.workflow_id, "token": task.token} for task in batch]
        body = dump({"workerId": self._settings.worker_id, "tasks": held}).encode()
        sent = self._loop.time()
        reply = await self._send(RENEW, body, self._settings.request_seconds)
        lost = {(each["workflowId"], each["token"]) for each in reply.get("lost", ())}
        over = {(each["workflowId"], each["token"]): each.get("over", ()) for each in reply.get("tasks", ())}
        for task in batch:
            held_as = task.workflow_id, task.token  # a newer task of the workflow has another token
            if task.is_over:
                continue
            if held_as in lost:
                self._tasks.end(task)
                continue
            task.lease_until = max(task.lease_until, sent + self._settings.lease_seconds)
            if held_as in over:
                self._tasks.handle(task, partial(task.waits_over, over[held_as], self._loop.time()))
