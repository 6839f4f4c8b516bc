"""Takes requests of workers from the broker, and hands them out in batches of decoded requests."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from timer_service.core.intake.rejection import error_body
from timer_service.core.ports.broker import QueryReply, Request
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.turns import Turns
from timer_service.core.requests.refusals import Refusals
from timer_service.core.requests.request_queue import QueueLimits, RequestQueue, Waiting
from timer_service.core.values.codec import MAX_BRACKETS, count_brackets, rejection_of
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, TENANT_PATTERN, Payload

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
    items: str | None = None
    """The field with the items of a request, if each item can be applied in a transaction of its own."""


class Asked(NamedTuple):
    """A valid request. Its tenant owns every row that it reads or writes."""

    tenant: str
    request: Any
    """The `RequestRoute.request` of its name."""
    items: str | None = None
    """The `RequestRoute.items` of its name."""
    replied: int = 0
    """The bytes of the reply to the items of the request that were applied before these."""

    def part(self, start: int, end: int, replied: int) -> "Asked":
        """Return the request with some of its items only."""
        assert self.items is not None  # noqa: S101 - a request without items is one item
        items = getattr(self.request, self.items)[start:end]
        return self._replace(request=self.request.model_copy(update={self.items: items}), replied=replied)


class Valid(NamedTuple):
    """A valid request, as it waited and as it was read."""

    waiting: Waiting
    asked: Asked


class Incoming(NamedTuple):
    """A batch of requests: the valid ones, and the error replies to the others, whose bodies are forgotten."""

    valid: Sequence[Valid]
    errors: Sequence[tuple[Request, QueryReply]]


def error_reply(rejection: Rejection) -> QueryReply:
    """Return the reply that carries an error."""
    return QueryReply(to_json({"error": error_body(rejection)}), rejection.code, rejection.message)


_TOO_MANY_REFUSED = error_reply(Rejection(Code.BUSY, "too many requests were refused; ask again in a second"))
_FULL = error_reply(Rejection(Code.BUSY, "too many requests are waiting; ask again later"))
LATE = error_reply(Rejection(Code.BUSY, "the request waited for too long; ask again later"))


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
        self._counted = 0
        """How many of the waiting requests are in the gauge."""
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
        self._count_waiting()
        self._removed += [each._replace(body=b"") for each in left if each is not request]
        self._changed.set()
        return self._count_error(request, _FULL) if any(each is request for each in left) else None

    async def next_batch(self, *, wait: bool = True) -> Incoming | None:
        """Wait for requests and return some of them; None if the intake is closed and all were returned.

        Unless `wait`, return those that are there, which may be none.
        """
        while wait and not self._queue and not self._removed:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        batch = self._queue.take(self._monotonic())
        self._count_waiting()
        removed, self._removed = self._removed, []
        errors = [(each, self._count_error(each, _FULL)) for each in removed]
        errors += [(each, self._count_error(each, LATE)) for each in batch.expired]
        return await self._decode(batch.requests, errors)

    def put_back(self, left: Sequence[Waiting], later: Sequence[Waiting] = ()) -> None:
        """Return requests of the last batch: `left` to their places, `later` behind the others of their tenants."""
        self._queue.put_back(left, later)
        self._count_waiting()

    def is_late(self, waiting: Waiting) -> bool:
        """Return whether the worker of a request no longer listens."""
        return self._queue.is_late(waiting, self._monotonic())

    def close(self) -> None:
        """Make `next_batch` return None after the requests that wait now."""
        self._closed = True
        self._changed.set()

    async def _decode(self, batch: Sequence[Waiting], errors: list[tuple[Request, QueryReply]]) -> Incoming:
        turns = Turns(_BYTES_PER_TURN, pauses=True)
        valid: list[Valid] = []
        for waiting in batch:
            request = waiting.request
            await turns.take(len(request.body))
            route = self._routes[request.name]
            try:
                valid.append(Valid(waiting, Asked(request.tenant, read_request(route, request), route.items)))
            except Rejection as rejection:
                self._refusals.record(request.tenant)
                errors.append((request._replace(body=b""), self._count_error(request, error_reply(rejection))))
        await turns.take(0)
        return Incoming(valid, errors)

    def _count_waiting(self) -> None:
        """Correct the gauge, which counts the requests of all intakes."""
        self._metrics.requests_waiting(len(self._queue) - self._counted)
        self._counted = len(self._queue)

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
