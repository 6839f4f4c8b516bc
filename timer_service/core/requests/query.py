"""Queries: decode the request, call the slice, encode the reply. They read committed rows and change nothing."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from timer_service.core.ports.broker import QueryReply, SendReply
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Reader
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.requests.bodies import ANSWERED, decode, encode_answer, error_reply
from timer_service.core.requests.computing import Computing, Steps
from timer_service.core.requests.fair_queue import FairQueue, QueueLimits
from timer_service.core.values.budget import DEFAULT_BUDGET, Budget
from timer_service.core.values.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Payload
from timer_service.core.values.stored_json import RawJson, write

log = logging.getLogger(__name__)

MAX_QUERY_BYTES = 64 * 1024
RUNNING = 4
"""How many queries are answered at a time."""
RUNNING_OF_TENANT = 3
"""How many queries of one tenant are answered at a time. The rest is for the other tenants."""
WAITING = 1000
"""How many queries wait."""
_QUERY_BYTES = 4096
"""The memory of a waiting query besides its body."""

_TOO_MANY = "too many queries are waiting; ask again later"
_FULL = error_reply(Rejection(Code.BUSY, _TOO_MANY))

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


def omit_none(**fields: Any) -> Mapping[str, Any]:
    """Return the fields that are not None. A reply omits a field whose value is not known."""
    return {name: value for name, value in fields.items() if value is not None}


async def _discard(_reply: QueryReply) -> None:
    """Send no reply."""


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
        self._waiting = FairQueue[asyncio.Future[str | None]](limits, monotonic)
        """The queries that wait: each for None, when its turn begins, or for the reason why it is refused."""
        self._running: Counter[str] = Counter()
        """The tenants whose queries are answered now."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the queries."""
        return list(self._routes)

    def refuse(self, name: str, tenant: str) -> QueryReply | None:
        """Return the error BUSY if the tenant has filled the queue, else None. To decide it here takes little time."""
        if not self._waiting.is_full(tenant, MAX_QUERY_BYTES + _QUERY_BYTES):
            return None
        self._metrics.query_answered(name, Code.BUSY)
        return _FULL

    async def answer(self, name: str, tenant: str, body: bytes, send: SendReply = _discard) -> QueryReply:
        """Answer one query of a tenant, and send the reply. An error is a reply too, so this raises nothing.

        The turn of a query ends when its reply is sent. So replies that are sent slowly need little memory.
        """
        try:
            async with self._turn(tenant, len(body)):
                reply = await self._answer(self._routes[name], tenant, body)
                if reply.code is None:
                    self._metrics.query_answered(name, ANSWERED)
                    await send(reply)
                    return reply
        except Rejection as rejection:
            reply = error_reply(rejection)
        except DatabaseUnavailableError as error:
            # No outage: a slow query also ends like this. The loops report a real outage.
            log.debug("query failed: the database is unavailable", extra={"query": name, "reason": str(error)})
            reply = error_reply(Rejection(Code.INTERNAL, "the database is not available at the moment"))
        except Exception:
            log.exception("query failed", extra={"query": name})
            reply = error_reply(Rejection(Code.INTERNAL, "the query failed; see the log of the service"))
        self._metrics.query_answered(name, reply.code or Code.INTERNAL)
        await send(reply)
        return reply

    async def _answer(self, route: QueryRoute, tenant: str, body: bytes) -> QueryReply:
        async with self._computing.slice():
            request = decode(body, route.request, what="query", most_bytes=MAX_QUERY_BYTES)
        answer = await route.answer(self._database.queries, tenant, request, self._clock.now())
        document = await self._computing.run(answer) if isinstance(answer, Generator) else answer
        async with self._computing.slice():
            return encode_answer(write(document))

    @asynccontextmanager
    async def _turn(self, tenant: str, body_bytes: int) -> AsyncIterator[None]:
        """Wait for the turn of a query, which lasts until the block ends. Raises `Rejection` if it has to give up."""
        turn: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        for each in self._waiting.add(tenant, turn, size=body_bytes + _QUERY_BYTES):
            _end_wait(each.item, _TOO_MANY)
        self._start_queries()
        try:
            refusal = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result() is None:  # its turn had begun
                self._end(tenant)
            raise
        if refusal is not None:
            raise Rejection(Code.BUSY, refusal)
        try:
            yield
        finally:
            self._end(tenant)

    def _end(self, tenant: str) -> None:
        self._running[tenant] -= 1
        self._running += Counter()  # removes the zeros
        self._start_queries()

    def _start_queries(self) -> None:
        while self._running.total() < RUNNING:
            skip = [tenant for tenant, count in self._running.items() if count >= RUNNING_OF_TENANT]
            taken = self._waiting.take(1, skip=skip)
            for each in taken.late:
                _end_wait(each.item, "the query waited for too long; ask again later")
            for each in taken.entries:
                if not each.item.cancelled():
                    self._running[each.tenant] += 1
                    each.item.set_result(None)
            if not taken.entries:
                break
        self._metrics.queries_waiting(len(self._waiting))


def _end_wait(turn: asyncio.Future[str | None], refusal: str) -> None:
    """End the wait with a refusal. An exception would keep the query in memory: its frame refers to the future."""
    if not turn.cancelled():
        turn.set_result(refusal)
