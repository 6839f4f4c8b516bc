"""A dispatcher in this process, on an in-memory broker and a store. A test takes every pass."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self

from tests.harness.waiting import until
from tests.harness.workflows import Workflows
from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Database
from timer_service.core.requests.requests import RequestQueue
from timer_service.core.values.address import Kind
from timer_service.core.values.budget import MIB
from timer_service.workflows.tasks.dispatcher import Dispatcher
from timer_service.workflows.tasks.requests import POLL_TASKS


class Dispatching:
    """A dispatcher, and the workers that poll it. The clock stands still unless a test moves it."""

    def __init__(self, workflows: Workflows) -> None:
        self.workflows = workflows
        self.wakes: list[int] = []
        """The instants at which the loop was woken."""
        self.hints: list[tuple[str, int]] = []
        parts = workflows.parts
        self.dispatcher = Dispatcher(parts, polling_interval=timedelta(seconds=5), wake=self.wakes.append)
        self.queue = RequestQueue([POLL_TASKS], parts.metrics, waiting_bytes=16 * MIB, batch_bytes=MIB)
        self._unread: list[asyncio.Task[Any]] = []
        self._task: asyncio.Task[None]

    @property
    def database(self) -> Database:
        return self.workflows.database

    @classmethod
    @asynccontextmanager
    async def running(cls, workflows: Workflows) -> AsyncIterator[Self]:
        """Hold polls during the block, and stop at its end."""
        started = cls(workflows)
        broker = workflows.broker
        await broker.subscribe_hints(lambda *hint: started.hints.append(hint))
        subscription = await broker.serve(Kind.REQUEST, ["poll-tasks"], started.queue.receive)
        started.dispatcher.open(subscription)
        started._task = asyncio.create_task(started.dispatcher.run(started.queue))
        yield started
        await started.stop()

    async def stop(self) -> None:
        """Take no more polls, and answer all."""
        self.queue.close()
        async with asyncio.timeout(10):
            await self._task

    async def poll(self, worker: str = "w", *types: str, wait_ms: int = 10_000, **fields: Any) -> asyncio.Task[Any]:
        """Send a poll. Return a task with its reply, when the poll is held."""
        tenant = fields.pop("tenant", "acme")
        body = {"workerId": worker, "types": types or ["order"], "slots": 100, "waitMs": wait_ms, **fields}
        task = asyncio.create_task(self._ask(tenant, body))
        before = len(self.workflows.metrics.held_polls)
        await until(lambda: len(self.workflows.metrics.held_polls) > before or task.done(), pause=0)
        return task

    async def hold(self, worker: str = "w", *types: str, **fields: Any) -> None:
        """Send a poll whose reply nobody reads."""
        self._unread.append(await self.poll(worker, *types, **fields))

    async def _ask(self, tenant: str, body: Any) -> Any:
        return json.loads((await self.workflows.broker.request("poll-tasks", tenant, json.dumps(body).encode())).body)

    async def tick(self) -> Pass:
        """Take one pass now."""
        return await self.dispatcher.tick(self.workflows.clock.now())

    async def start(self, *ids: str, tenant: str = "acme", **fields: Any) -> None:
        """Start workflows of the type `order`."""
        for each in ids:
            self.workflows.send("StartWorkflow", tenant=tenant, workflowId=each, **{"type": "order", **fields})
        await self.workflows.consume()


async def ids(polls: Sequence[asyncio.Task[Any]]) -> list[list[str]]:
    """Return the workflows in the replies to polls."""
    async with asyncio.timeout(10):
        return [[task["workflowId"] for task in (await each)["tasks"]] for each in polls]
