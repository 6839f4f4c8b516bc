"""Queries: decode the request, call the slice, encode the reply. They read committed rows and change nothing."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from timer_service.core.ports.broker import QueryReply, Replies, Request, RequestSubscription
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Reader
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.requests.bodies import ANSWERED, decode, encode_answer, error_reply
from timer_service.core.requests.computing import Computing, Steps
from timer_service.core.requests.fair_queue import FairQueue, QueueLimits
from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.budget import DEFAULT_BUDGET, Budget
from timer_service.core.values.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import RawJson, write

log = logging.getLogger(__name__)

MAX_QUERY_BYTES = 64 * 1024
RUNNING = 4
"""How many queries are answered at a time."""
RUNNING_OF_TENANT = 3
"""How many queries of one tenant are answered at a time. The rest is for the other tenants."""
WAITING = 1000
"""How many queries wait."""

Document = Mapping[str, Any] | RawJson
"""The reply to a query."""


class QueryRoute(NamedTuple):
    """A query: its name, the models of its request and reply, and the function that answers it."""

    name: str
    request: type[Payload]
    reply: type[Payload]
    answer: Callable[[Reader, str, Any, int], Awaitable[Document | Steps[Document]]]
    """Returns the reply, or the steps to it if it takes more than a few milliseconds of computing.

    The arguments are a reader, the tenant, the request and the current time.
    """


class Queries:
    """The queries of every slice. A few are answered at a time, and the tenants take turns."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        routes: Sequence[QueryRoute],
        metrics: MetricsPort,
        *,
        budget: Budget = DEFAULT_BUDGET,
        computing: Computing | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._computing = computing or Computing()
        self._routes = {route.name: route for route in routes}
        limits = QueueLimits(budget.queries - RUNNING * MAX_MESSAGE_BYTES, WAITING)
        self._queue = FairQueue(
            limits, answered=metrics.query_answered, waiting=metrics.queries_waiting, monotonic=monotonic
        )
        self._running: Counter[str] = Counter()
        """How many queries of each tenant are answered now."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the queries."""
        return list(self._routes)

    def receive(self, query: Request) -> Replies:
        """Let a query wait for its turn. Return the replies to the queries that are refused."""
        return self._queue.receive(query)

    async def run(self, subscription: RequestSubscription) -> None:
        """Answer queries until the task is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(RUNNING):
                group.create_task(self._run(subscription))

    async def _run(self, subscription: RequestSubscription) -> None:
        while True:
            await self._answer_next(subscription)  # its frame has the query, which must not wait for the next one

    async def _answer_next(self, subscription: RequestSubscription) -> None:
        """Answer the next query. Its turn ends when the reply is sent: slow replies need little memory."""
        taken = await self._queue.next(1, may_go=lambda tenant: self._running[tenant] < RUNNING_OF_TENANT)
        turns = Counter(each.request.tenant for each in taken.entries)
        self._running += turns
        try:
            await subscription.reply(taken.late)
            for query, _ in taken.entries:
                await subscription.reply([(query, await self.answer(query.name, query.tenant, query.body))])
        finally:
            self._running -= turns

    async def answer(self, name: str, tenant: str, body: bytes) -> QueryReply:
        """Return the reply to a query of a tenant. An error is a reply too, so this raises nothing."""
        try:
            reply = await self._answer(self._routes[name], tenant, body)
        except Rejection as rejection:
            reply = error_reply(rejection)
        except DatabaseUnavailableError as error:
            # No outage: a slow query also ends like this. The loops report a real outage.
            log.debug("query failed: the database is unavailable", extra={"query": name, "reason": str(error)})
            reply = error_reply(Rejection(Code.INTERNAL, "the database is not available at the moment"))
        except Exception:
            log.exception("query failed", extra={"query": name})
            reply = error_reply(Rejection(Code.INTERNAL, "the query failed; see the log of the service"))
        self._metrics.query_answered(name, reply.code or ANSWERED)
        return reply

    async def _answer(self, route: QueryRoute, tenant: str, body: bytes) -> QueryReply:
        """Return the reply of a slice to a query. Computes only in slices."""
        async with self._computing.slice():
            request = decode(body, route.request, what="query", most_bytes=MAX_QUERY_BYTES)
        answer = await route.answer(self._database.queries, tenant, request, self._clock.now())
        document = await self._computing.run(answer) if isinstance(answer, Generator) else answer
        async with self._computing.slice():
            return encode_answer(write(document))
