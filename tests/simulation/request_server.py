"""What serves the requests of workers in one simulated instance, composed as in `timer_service.app.worker_requests`."""

import asyncio
import math
import random
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import NamedTuple

from tests.simulation.faults import FaultyRequests
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.ports.broker import Request
from timer_service.core.ports.database import Transaction
from timer_service.core.requests.requests import Answer, Asked, HandleRequests, RequestQueue, Requests
from timer_service.core.service.slice import Parts
from timer_service.core.values.budget import MIB
from timer_service.workflows.tasks import dispatcher
from timer_service.workflows.tasks.dispatcher import Dispatcher
from timer_service.workflows.tasks.requests import POLL_TASKS, REQUESTS, handle_requests

_ROOM = 256 * 1024  # small, so that the requests of a batch have several transactions
_POLLING_INTERVAL = timedelta(seconds=5)


class AppliedRequests(NamedTuple):
    """The requests of one transaction, and their answers."""

    asked: Sequence[Asked]
    answers: Sequence[Answer]
    now: int
    may_time_out: bool


class RequestServer:
    """Applies the requests of workers, and holds their polls."""

    def __init__(
        self,
        parts: Parts,
        dispatcher_parts: Parts,
        subscription: FaultyRequests,
        dispatcher_subscription: FaultyRequests,
        opened: Callable[[], None],
    ) -> None:
        """`opened` is called before a transaction in which waits may reach their timeouts."""
        self._parts = parts
        self._subscription = subscription
        self._opened = opened
        self._gate = BacklogGate(parts.broker, parts.database)
        self._rng = random.Random(0)
        self.applied: AppliedRequests | None = None
        """The last requests that were applied, in a transaction that may not be committed yet."""
        self.look_at = math.inf
        """When the dispatcher wants its next pass."""
        self.dispatcher = Dispatcher(dispatcher_parts, polling_interval=_POLLING_INTERVAL, wake=self._wake)
        self.dispatcher.open(dispatcher_subscription)
        self._requests = Requests(
            database=parts.database,
            clock=parts.clock,
            metrics=parts.metrics,
            prepare=self._prepare,
            wake=_wake_loops,
            offer=self.dispatcher.offer,
            outages=parts.outages,
        )
        self._polls = self._queue(polls=True)
        self._holding: asyncio.Task[None] | None = None

    async def apply(self, requests: Sequence[Request]) -> None:
        """Apply requests, and reply to them."""
        queue = self._queue()
        for each in requests:
            queue.receive(each)
        queue.close()
        await self._requests.run(queue, self._subscription)

    async def hold(self, polls: Sequence[Request]) -> None:
        """Hold polls until the dispatcher answers them."""
        if self._holding is None:
            await self._parts.broker.subscribe_hints(self._hear)
            self._holding = asyncio.create_task(self.dispatcher.run(self._polls))
        for each in polls:
            self._polls.receive(each)

    def end(self) -> None:
        """Stop at once, as a process that crashes."""
        if self._holding is not None:
            self._holding.cancel()

    def _queue(self, *, polls: bool = False) -> RequestQueue:
        routes = [POLL_TASKS] if polls else REQUESTS
        metrics = self._parts.metrics
        return RequestQueue(routes, metrics, waiting_bytes=16 * MIB, batch_bytes=MIB, monotonic=lambda: 0)

    def _wake(self, at: float) -> None:
        self.look_at = min(self.look_at, at)

    def _hear(self, loop: str, at: int) -> None:
        assert loop == dispatcher.LOOP
        self.dispatcher.look_everywhere(at)

    async def _prepare(self, now: int) -> HandleRequests:
        may_time_out = await self._gate.is_open(now)
        if may_time_out:
            self._opened()

        async def handle(tx: Transaction, asked: Sequence[Asked], now: int) -> Sequence[Answer]:
            answers = await handle_requests(tx, asked, now, rng=self._rng, may_time_out=may_time_out, room=_ROOM)
            self.applied = AppliedRequests(asked[: len(answers)], answers, now, may_time_out)
            return answers

        return handle


async def _wake_loops(_loops: Collection[str], _at: int) -> None:
    """Do nothing: a test takes every pass."""
