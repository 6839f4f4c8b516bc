"""Queries: decode the request, call the slice, encode the reply. They read committed rows and change nothing."""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from timer_service.core.intake.rejection import error_body
from timer_service.core.ports.broker import QueryReply, SendReply
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Reader
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.requests.computing import Computing, Steps
from timer_service.core.requests.query_queue import QueryLimits, QueryTurns
from timer_service.core.requests.refusals import Refusals
from timer_service.core.values.budget import DEFAULT_BUDGET, Budget
from timer_service.core.values.codec import rejection_of
from timer_service.core.values.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Payload
from timer_service.core.values.stored_json import RawJson, write

log = logging.getLogger(__name__)

MAX_QUERY_BYTES = 64 * 1024
_MAX_FIELDS = 100
"""More fields than any query has. Each unknown field costs a fault, which takes longer to describe than to send."""

_REFUSED = frozenset({Code.BUSY, Code.TOO_LARGE, Code.INVALID_JSON, Code.INVALID_PAYLOAD})
"""The codes of queries that nobody sends in large numbers, except by mistake or to do harm."""

ANSWERED = "answered"
"""The outcome of a query in the metrics. The outcome of an error is its code."""


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
    ) -> None:
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._computing = computing or Computing()
        self._routes = {route.name: route for route in routes}
        self._turns = QueryTurns(QueryLimits.of(budget.queries), metrics)
        self._refusals = Refusals()

    @property
    def names(self) -> Sequence[str]:
        """The names of the queries."""
        return list(self._routes)

    def refuse(self, name: str, tenant: str) -> QueryReply | None:
        """Return the error BUSY if too many queries of the tenant were just refused, else None."""
        if not self._refusals.too_many(tenant):
            return None
        self._metrics.query_answered(name, Code.BUSY)
        return _TOO_MANY_REFUSED

    async def answer(self, name: str, tenant: str, body: bytes, send: SendReply = _discard) -> QueryReply:
        """Answer one query of a tenant, and send the reply. An error is a reply too, so this raises nothing.

        The turn of a query ends when its reply is sent. So replies that are sent slowly need little memory.
        """
        try:
            return await self._answer(name, tenant, body, send)
        except Rejection as rejection:
            if rejection.code in _REFUSED:
                self._refusals.record(tenant)
            reply = _error(rejection)
        except DatabaseUnavailableError as error:
            # No outage: a slow query also ends like this. The loops report a real outage.
            log.debug("query failed: the database is unavailable", extra={"query": name, "reason": str(error)})
            reply = _error(Rejection(Code.INTERNAL, "the database is not available at the moment"))
        except Exception:
            log.exception("query failed", extra={"query": name})
            reply = _error(Rejection(Code.INTERNAL, "the query failed; see the log of the service"))
        self._metrics.query_answered(name, reply.code or Code.INTERNAL)
        await send(reply)
        return reply

    async def _answer(self, name: str, tenant: str, body: bytes, send: SendReply) -> QueryReply:
        if len(body) > MAX_QUERY_BYTES:
            raise Rejection(Code.TOO_LARGE, f"the query has {len(body)} bytes; the limit is {MAX_QUERY_BYTES}")
        route = self._routes[name]
        async with self._turns.turn(tenant, len(body)):
            async with self._computing.slice():
                request = _read(route.request, body)
            answer = await route.answer(self._database.queries, tenant, request, self._clock.now())
            document = await self._computing.run(answer) if isinstance(answer, Generator) else answer
            async with self._computing.slice():
                encoded = write(document).encode()
            if len(encoded) > MAX_MESSAGE_BYTES:
                message = f"the reply would have {len(encoded)} bytes; the limit is {MAX_MESSAGE_BYTES}"
                raise Rejection(Code.TOO_LARGE, message)
            self._metrics.query_answered(name, ANSWERED)
            reply = QueryReply(encoded)
            await send(reply)
            return reply


def _read(model: type[Payload], body: bytes) -> Payload:
    try:
        document = from_json(body or b"{}", allow_inf_nan=False)
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"the body is not JSON: {error}") from error
    if isinstance(document, dict) and len(document) > _MAX_FIELDS:
        raise Rejection(Code.INVALID_PAYLOAD, f"the query has {len(document)} fields; the limit is {_MAX_FIELDS}")
    try:
        return model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the query", error) from error


def _error(rejection: Rejection) -> QueryReply:
    return QueryReply(to_json({"error": error_body(rejection)}), rejection.code, rejection.message)


_TOO_MANY_REFUSED = _error(Rejection(Code.BUSY, "too many queries were refused; ask again in a second"))
