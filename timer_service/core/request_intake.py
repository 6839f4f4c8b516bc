"""Takes requests of workers from the broker, and hands them out in batches of decoded requests."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from timer_service.core.broker import QueryReply, Request
from timer_service.core.codec import MAX_BRACKETS, count_brackets, rejection_of
from timer_service.core.errors import Code, Fault, Rejection
from timer_service.core.message import MAX_MESSAGE_BYTES, TENANT_PATTERN, Payload
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.refusals import Refusals
from timer_service.core.rejection import error_body
from timer_service.core.request_queue import QueueLimits, RequestQueue
from timer_service.core.turns import Turns

_BYTES_PER_TURN = 64 * 1024
_MAX_FIELDS = 100
"""More fields than any request has. Each unknown field costs a fault, which takes longer to describe than to send."""


class RequestRoute(NamedTuple):
    """A request: its name, and the models of its request and reply."""

    name: str
    request: type[Payload]
    reply: type[Payload]
    most_bytes: int = MAX_MESSAGE_BYTES
    """The largest body of a request."""


class Asked(NamedTuple):
    """A valid request. Its tenant owns every row that it reads or writes."""

    tenant: str
    request: Any
    """The `RequestRoute.request` of its name."""


class Incoming(NamedTuple):
    """A batch of requests: the valid ones, and the error replies to the others. Their bodies are forgotten."""

    valid: Sequence[tuple[Request, Asked]]
    errors: Sequence[tuple[Request, QueryReply]]


def error_reply(rejection: Rejection) -> QueryReply:
    """Return the reply that carries an error."""
    return QueryReply(to_json({"error": error_body(rejection)}), rejection.code, rejection.message)


_TOO_MANY_REFUSED = error_reply(Rejection(Code.BUSY, "too many requests were refused; ask again in a second"))
_FULL = error_reply(Rejection(Code.BUSY, "too many requests are waiting; ask again later"))
_LATE = error_reply(Rejection(Code.BUSY, "the request waited for too long; ask again later"))


class Intake:
    """The waiting requests of some routes. `receive` is called by the broker, `next_batch` by one task."""

    def __init__(
        self,
        routes: Sequence[RequestRoute],
        limits: QueueLimits,
        metrics: MetricsPort,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes: Mapping[str, RequestRoute] = {route.name: route for route in routes}
        self._queue = RequestQueue(limits)
        self._metrics = metrics
        self._monotonic = monotonic
        self._refusals = Refusals(monotonic)
        self._removed: list[Request] = []
        """Requests of other tenants that made room for newer ones. They get a reply with the next batch."""
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def names(self) -> Sequence[str]:
        """The names of the requests."""
        return list(self._routes)

    def receive(self, request: Request) -> QueryReply | None:
        """Take a request, or return the error BUSY. It decides without reading the request."""
        if self._refusals.too_many(request.tenant):
            return self._count_error(request, _TOO_MANY_REFUSED)
        left = self._queue.add(request, self._monotonic())
        self._metrics.requests_waiting(len(self._queue))
        self._removed += [each._replace(body=b"") for each in left if each is not request]
        self._changed.set()
        return self._count_error(request, _FULL) if any(each is request for each in left) else None

    async def next_batch(self) -> Incoming | None:
        """Wait for requests and return some of them; None if the intake is closed and all were returned."""
        while not self._queue and not self._removed:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        batch = self._queue.take(self._monotonic())
        self._metrics.requests_waiting(len(self._queue))
        removed, self._removed = self._removed, []
        errors = [(each, self._count_error(each, _FULL)) for each in removed]
        errors += [(each, self._count_error(each, _LATE)) for each in batch.expired]
        return await self._decode(batch.requests, errors)

    def close(self) -> None:
        """Make `next_batch` return None after the requests that wait now."""
        self._closed = True
        self._changed.set()

    async def _decode(self, requests: Sequence[Request], errors: list[tuple[Request, QueryReply]]) -> Incoming:
        turns = Turns(_BYTES_PER_TURN)
        valid: list[tuple[Request, Asked]] = []
        for request in requests:
            await turns.take(len(request.body))
            unread = request._replace(body=b"")
            try:
                payload = read_request(self._routes[request.name], request)
                valid.append((unread, Asked(request.tenant, payload)))
            except Rejection as rejection:
                self._refusals.record(request.tenant)
                errors.append((unread, self._count_error(request, error_reply(rejection))))
        return Incoming(valid, errors)

    def _count_error(self, request: Request, reply: QueryReply) -> QueryReply:
        self._metrics.request_answered(request.name, reply.code or Code.INTERNAL)
        return reply


def read_request(route: RequestRoute, request: Request) -> Payload:
    """Return the payload of a request. Raises `Rejection`, which names the fields at fault."""
    body = request.body
    if not re.fullmatch(TENANT_PATTERN, request.tenant):
        reason = "must have 1 to 64 characters out of A-Z, a-z, 0-9, _ and -"
        raise Rejection(Code.INVALID_PAYLOAD, f"the tenant in the subject {reason}", [Fault("tenantId", reason)])
    if len(body) > route.most_bytes:
        raise Rejection(Code.TOO_LARGE, f"the request has {len(body)} bytes; the limit is {route.most_bytes}")
    if (brackets := count_brackets(body)) > MAX_BRACKETS:
        raise Rejection(Code.TOO_LARGE, f"the request has {brackets} arrays and objects; the limit is {MAX_BRACKETS}")
    try:
        document = from_json(body or b"{}", allow_inf_nan=False)
    except ValueError as error:
        raise Rejection(Code.INVALID_JSON, f"the body is not JSON: {error}") from error
    if isinstance(document, dict) and len(document) > _MAX_FIELDS:
        raise Rejection(Code.INVALID_PAYLOAD, f"the request has {len(document)} fields; the limit is {_MAX_FIELDS}")
    try:
        return route.request.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise rejection_of(Code.INVALID_PAYLOAD, "the request", error) from error
