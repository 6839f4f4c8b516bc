"""Sends the reports of tasks: many tasks in one request, and a few requests at the same time."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from timer_service.client.errors import NoAnswerError
from timer_service.worker.definition import Settings
from timer_service.worker.report import REPORT_BYTES, Report, dump
from timer_service.worker.service import REPORT, Delays, Send, send_in_halves
from timer_service.worker.task import RunningTask
from timer_service.worker.tasks import Tasks

log = logging.getLogger(__name__)

_MOST_REPORTS = 1000
_MOST_REQUESTS = 4
"""The most new requests under way. Each task has at most one report under way."""

_Batch = Sequence[tuple[RunningTask, Report]]


class Reporter:
    """Sends the reports of a worker's tasks."""

    def __init__(self, send: Send, settings: Settings, tasks: Tasks) -> None:
        self._send = send
        self._settings = settings
        self._tasks = tasks
        self._requests = asyncio.Semaphore(_MOST_REQUESTS)

    async def run(self) -> None:
        """Send reports until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._tasks.has_changed.wait()
                await self._requests.acquire()  # `_report` releases it
                await asyncio.sleep(0)  # what ends in this turn of the loop goes into the same request
                if batch := self._take_batch():
                    group.create_task(self._report(batch))
                else:
                    self._requests.release()

    def _take_batch(self) -> _Batch:
        """Return the reports of the next request, at least one if there are any."""
        batch: list[tuple[RunningTask, Report]] = []
        size = 0
        now = asyncio.get_running_loop().time()
        changed = self._tasks.changed
        while changed and len(batch) < _MOST_REPORTS and size < REPORT_BYTES:
            task = next(iter(changed))
            del changed[task]
            report = task.next_report(now, is_draining=self._tasks.is_draining)
            if report is not None:
                batch.append((task, report))
                size += len(report.text.encode())
        if not changed:
            self._tasks.has_changed.clear()
        return batch

    async def _report(self, batch: _Batch) -> None:
        """Send reports until each has an outcome, or its task is over: its lease has run out, for example.

        Each time, the same reports are sent with the same bytes. Only the first request holds back other requests.
        """
        delays = Delays()
        try:
            left = await self._send_once(batch)
        finally:
            self._requests.release()
        while left:
            await asyncio.sleep(delays.next())
            live = [each for each in left if not each[0].is_over]
            left = await self._send_once(live) if live else ()

    async def _send_once(self, batch: _Batch) -> _Batch:
        """Send reports and return those to send again. A task whose report is refused alone ends."""
        unsent = await send_in_halves(batch, self._request)
        for (task, _), error in unsent.refused:
            log.error("the service refuses the report of the workflow %s: %s", task.workflow_id, error)
            self._tasks.end(task)
        if unsent.left:
            log.info("%d reports are not stored yet: %s", len(unsent.left), unsent.error)
        return unsent.left

    async def _request(self, batch: _Batch) -> None:
        """Send one request, and give each task the outcome of its report: the reply has them in the same order."""
        loop = asyncio.get_running_loop()
        texts = ",".join(report.text for _, report in batch)
        body = f'{{"workerId":{dump(self._settings.worker_id)},"reports":[{texts}]}}'.encode()
        sent = loop.time()
        reply = await self._send(REPORT, body, self._settings.request_seconds)
        lease_until = sent + self._settings.lease_seconds
        outcomes = reply.get("reports", ())
        if len(outcomes) != len(batch):
            raise NoAnswerError(f"the reply has {len(outcomes)} outcomes for {len(batch)} reports")
        for (task, _), outcome in zip(batch, outcomes, strict=True):
            self._tasks.handle(task, partial(task.reported, outcome, lease_until, loop.time()))
