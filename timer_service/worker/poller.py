"""Asks for tasks: one poll under way, for the free slots."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from timer_service.client.errors import TimerServiceError
from timer_service.worker.definition import Settings
from timer_service.worker.report import dump
from timer_service.worker.service import EFFECTS, POLL, Delays, Send
from timer_service.worker.task import RunningTask
from timer_service.worker.tasks import Tasks

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5
_FAILURES_OF_A_RESTART = 5
"""So many polls in a row may fail without a warning: the service restarts in about this time."""


class Poller:
    """Asks for tasks and starts them, until the tasks drain."""

    def __init__(self, send: Send, settings: Settings, tasks: Tasks) -> None:
        self._send = send
        self._settings = settings
        self._tasks = tasks
        self._is_polling = False
        self._loads: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End the poll under way, by a poll without slots. The tasks that it still brings are released."""
        if self._is_polling:
            with suppress(TimerServiceError):  # then the poll ends when its time is up
                await self._send(POLL, self._question(slots=0, wait_seconds=0), _PATIENCE_SECONDS)

    async def run(self) -> None:
        """Poll until the tasks drain."""
        delays, failures = Delays(), 0
        while await self._tasks.until_free():
            try:
                await self._poll()
                if failures > _FAILURES_OF_A_RESTART:
                    log.info("the service answers again for the tenant %s", self._settings.tenant)
                delays, failures = Delays(), 0
            except TimerServiceError as error:
                failures += 1
                if failures == _FAILURES_OF_A_RESTART + 1:
                    log.warning("no tasks for the tenant %s: %s", self._settings.tenant, error)
                await asyncio.sleep(delays.next())

    async def _poll(self) -> None:
        """Send one poll for the free slots, and begin the tasks that it brings."""
        loop, settings = asyncio.get_running_loop(), self._settings
        question = self._question(self._tasks.free, settings.wait_seconds)
        sent = loop.time()
        self._is_polling = True
        try:
            reply = await self._send(POLL, question, settings.wait_seconds + _PATIENCE_SECONDS)
        finally:
            self._is_polling = False
        # The lease counts from the claim: after the poll was sent, and before its reply was received.
        lease_until = min(loop.time(), sent + settings.wait_seconds) + settings.lease_seconds
        for view in reply.get("tasks", ()):
            try:
                self._receive(view, lease_until)
            except Exception:
                log.exception("a task of the service cannot be read; its lease runs out")

    def _question(self, slots: int, wait_seconds: float) -> bytes:
        """Return the body of a poll."""
        settings = self._settings
        named = {} if settings.name is None else {"name": settings.name}
        question = {
            "workerId": settings.worker_id,
            **named,
            "queue": settings.queue,
            "types": list(settings.workflows),
            "slots": slots,
            "waitMs": round(wait_seconds * 1000),
            "leaseMs": round(settings.lease_seconds * 1000),
        }
        return dump(question).encode()

    def _receive(self, view: Mapping[str, Any], lease_until: float) -> None:
        """Hold a task and start it. With a cursor, it has more effects to read before it starts."""
        task = RunningTask(view, self._settings.workflows[view["type"]], self._settings.tenant, lease_until)
        self._tasks.add(task)
        if view.get("cursor") is None:
            self._start(task, view.get("effects", ()))
        else:
            load = asyncio.create_task(self._load(task, view))
            self._loads.add(load)
            load.add_done_callback(self._loads.discard)

    def _start(self, task: RunningTask, effects: Any) -> None:
        now = asyncio.get_running_loop().time()
        self._tasks.handle(task, lambda: task.start(effects, now))

    async def _load(self, task: RunningTask, view: Mapping[str, Any]) -> None:
        """Read the effects that did not fit into the task, and start it. Give up after the end of its first lease."""
        effects, cursor = [*view["effects"]], view["cursor"]
        delays, give_up_at = Delays(), task.lease_until
        while cursor is not None and not task.is_over:
            question = {"workflowId": task.workflow_id, "token": task.token, "cursor": cursor}
            try:
                page = await self._send(EFFECTS, dump(question).encode(), self._settings.request_seconds)
                effects += page["effects"]
                cursor = page.get("cursor")
            except Exception as error:  # noqa: BLE001 - a page can also have an unknown form
                if asyncio.get_running_loop().time() > give_up_at:
                    log.warning("the effects of the workflow %s cannot be read: %r", task.workflow_id, error)
                    self._tasks.end(task)
                await asyncio.sleep(delays.next())
        if not task.is_over:
            self._start(task, effects)
