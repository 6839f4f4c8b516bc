"""The requests of workers in one instance: what receives them, applies them, holds polls, and stops in order."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from timer_service.app.tasks import KeptTask, build_loop
from timer_service.config import Config
from timer_service.core.due.loop import Wakeups, Worker
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import Broker, Replies, Request, RequestSubscription
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.health import HEALTHY, Health, worst
from timer_service.core.requests.bodies import error_reply
from timer_service.core.requests.requests import Answer, Asked, HandleRequests, RequestQueue, RequestRoute, Requests
from timer_service.core.service.slice import Parts
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import Code, Rejection
from timer_service.workflows.tasks import dispatcher, registry
from timer_service.workflows.tasks.dispatcher import Dispatcher
from timer_service.workflows.tasks.requests import POLL_TASKS, REQUESTS, handle_requests

log = logging.getLogger(__name__)

_DISABLED = error_reply(Rejection(Code.BUSY, "workflows are disabled (TIMER_WORKFLOWS_ENABLED=false)"))


class WorkerRequests:
    """Serves the requests of workers. If workflows are disabled, it only refuses them, and no loop or task runs."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self._enabled = "workflows" in config.enabled
        self._parts = parts
        self._polls = self._queue([POLL_TASKS])
        self._others = self._queue(REQUESTS)
        self._gate = BacklogGate(parts.broker, parts.database)
        self._dispatcher = Dispatcher(
            parts, polling_interval=config.polling_interval, wake=partial(parts.wake, dispatcher.LOOP)
        )
        self._subscription: RequestSubscription | None = None
        """Set by `open`, as are the next two."""
        self._requests: Requests
        self._kept: list[KeptTask]
        workers: dict[str, Worker] = {dispatcher.LOOP: self._dispatcher, registry.LOOP: self._dispatcher.registry}
        self.loops = [
            build_loop(parts, name, worker, config.polling_interval)
            for name, worker in workers.items()
            if self._enabled
        ]

    @property
    def health(self) -> Health:
        """Down if requests are not applied or polls are not answered."""
        if not self._enabled:
            return HEALTHY
        if self._subscription is None:
            return Health.down("not subscribed to requests yet")
        tasks = [each.health for each in self._kept]
        loops = [each.health for each in self.loops]
        return worst(self._subscription.health, *tasks, *loops, self._requests.health)

    async def open(self, broker: Broker, wakeups: Wakeups) -> None:
        """Start to receive requests. Raises `StartError` if the connection cannot be opened."""
        self._requests = Requests(
            database=self._parts.database,
            clock=self._parts.clock,
            metrics=self._parts.metrics,
            prepare=self._prepare,
            wake=wakeups.wake,
            offer=self._dispatcher.offer,
            outages=self._parts.outages,
        )
        names = [*self._polls.names, *self._others.names]
        subscription = await broker.serve(Kind.REQUEST, names, self._receive if self._enabled else _refuse)
        self._dispatcher.open(subscription)
        self._kept = [
            KeptTask("requests", lambda: self._requests.run(self._others, subscription)),
            KeptTask("polls", lambda: self._dispatcher.run(self._polls)),
        ]
        self._subscription = subscription

    @property
    def listeners(self) -> dict[str, Callable[[int], None]]:
        """What gets the hints of other instances, by the name of the loop."""
        return {dispatcher.LOOP: self._dispatcher.look_everywhere} if self._enabled else {}

    def offer(self, lane: Lane, at: int) -> None:
        """Tell the dispatcher that a row of a lane becomes available to workers at an instant."""
        if self._enabled:
            self._dispatcher.offer(lane, at)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Start the tasks that hold polls and apply requests, after `open`. They end after `close`."""
        kept = self._kept if self._enabled else []
        return [asyncio.create_task(each.run(), name=each.name) for each in kept]

    async def close(self) -> None:
        """Take no more requests. Those that were received are applied, and all polls are answered."""
        if self._subscription is not None:
            await self._subscription.close()
        self._polls.close()
        self._others.close()

    def _receive(self, request: Request) -> Replies:
        """Let a request wait in its queue. Return replies to the requests that it has no room for."""
        queue = self._polls if request.name == POLL_TASKS.name else self._others
        return queue.receive(request)

    def _queue(self, routes: Sequence[RequestRoute]) -> RequestQueue:
        budget = self._parts.budget
        return RequestQueue(routes, self._parts.metrics, waiting_bytes=budget.requests, batch_bytes=budget.part)

    async def _prepare(self, now: int) -> HandleRequests:
        """Return what handles requests at an instant. Asks the broker, so it runs before the transaction."""
        may_time_out = await self._gate.is_open(now)  # else a command that is not handled yet may end a wait
        return partial(self._handle, may_time_out=may_time_out)

    async def _handle(
        self, tx: Transaction, asked: Sequence[Asked], now: int, *, may_time_out: bool
    ) -> Sequence[Answer]:
        """Record the workers that have sent requests, and apply the first requests."""
        for each in asked:
            worker_id = getattr(each.request, "worker_id", None)  # a request for effects names no worker
            if worker_id is not None:
                self._dispatcher.registry.record(each.tenant, worker_id)
        rng, room = self._parts.rng, self._parts.budget.portion
        return await handle_requests(tx, asked, now, rng=rng, may_time_out=may_time_out, room=room)


def _refuse(request: Request) -> Replies:
    return [(request, _DISABLED)]
