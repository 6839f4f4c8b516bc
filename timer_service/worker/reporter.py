"""Sends the reports of tasks: many tasks in one request, and a few requests at the same time."""

import asyncio
import logging
from collections.abc import Sequence

from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.worker.report import REPORT_BYTES, Report, dump
from timer_service.worker.service import REPORT, Service, repeat
from timer_service.worker.settings import Settings
from timer_service.worker.task import RunningTask
from timer_service.worker.tasks import Tasks

log = logging.getLogger(__name__)

_MOST_REPORTS = 1000
_MOST_REQUESTS = 4
"""The most requests under way. Each task has at most one report under way."""

_Batch = Sequence[tuple[RunningTask, Report]]


class Reporter:
    """Sends the reports of a worker's tasks."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._changed: dict[RunningTask, None] = {}
        self._event = asyncio.Event()
        self._requests = asyncio.Semaphore(_MOST_REQUESTS)

    def notify(self, task: RunningTask) -> None:
        """Note that a task may have something to report."""
        self._changed[task] = None
        self._event.set()

    async def run(self, tasks: Tasks) -> None:
        """Send reports until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._event.wait()
                await self._requests.acquire()
                await asyncio.sleep(0)  # what ends in this turn of the loop goes into the same request
                if batch := self._take_batch(is_draining=tasks.is_draining):
                    group.create_task(self._send_and_release(batch, tasks))
                else:
                    self._requests.release()

    def _take_batch(self, *, is_draining: bool) -> _Batch:
        """Return the reports of the next request, at least one if there are any."""
        batch: list[tuple[RunningTask, Report]] = []
        size = 0
        now = asyncio.get_running_loop().time()
        while self._changed and len(batch) < _MOST_REPORTS and size < REPORT_BYTES:
            task = next(iter(self._changed))
            del self._changed[task]
            report = task.next_report(now, is_draining=is_draining)
            if report is not None:
                batch.append((task, report))
                size += len(report.text.encode())
        if not self._changed:
            self._event.clear()
        return batch

    async def _send_and_release(self, batch: _Batch, tasks: Tasks) -> None:
        try:
            await self._send(batch, tasks)
        finally:
            self._requests.release()

    async def _send(self, batch: _Batch, tasks: Tasks) -> None:
        loop = asyncio.get_running_loop()
        texts = ",".join(report.text for _, report in batch)
        body = f'{{"workerId":{dump(self._settings.worker_id)},"reports":[{texts}]}}'.encode()
        sent, until = loop.time(), max(task.lease_until for task, _ in batch)
        try:
            reply = await repeat(
                self._service, REPORT, body, until=until, timeout_seconds=self._settings.request_seconds
            )
            outcomes = reply["reports"]
        except NoAnswerError as error:
            log.warning("%d reports were not stored: %s", len(batch), error)
            for task, _ in batch:
                tasks.end(task)
            return
        except TimerServiceError as error:
            await self._send_halves(batch, tasks, error)
            return
        for (task, _), outcome in zip(batch, outcomes, strict=True):
            task.reported(outcome, sent + self._settings.lease_seconds, loop.time())
            tasks.update(task)

    async def _send_halves(self, batch: _Batch, tasks: Tasks, error: TimerServiceError) -> None:
        """Find the report that the service refuses. The others must not suffer."""
        if len(batch) == 1:
            log.error("the service refuses the report of the workflow %s: %s", batch[0][0].workflow_id, error)
            tasks.end(batch[0][0])
            return
        middle = len(batch) // 2
        await self._send(batch[:middle], tasks)
        await self._send(batch[middle:], tasks)
