"""Requests of workers: collected while a transaction runs, and applied together in the next one.

What one transaction reads and replies has a limit, the *room*. Requests beyond it stay in the queue. A request about
several tasks that needs more than the room is refused, and its worker sends the tasks in parts. A worker gets its reply
after the commit. If a reply is lost, the worker repeats the request, and nothing more changes.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.isolate import isolate
from timer_service.core.due.lanes import Lane
from timer_service.core.ports.broker import QueryReply, Request, RequestSubscription
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Reader, Transaction
from timer_service.core.ports.health import Health, OutageLog, RecentFailure
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.ports.turns import Turns
from timer_service.core.requests.bodies import ANSWERED, decode, encode_answer, error_reply
from timer_service.core.requests.fair_queue import Entry, FairQueue, QueueLimits, Refusals
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, TENANT_PATTERN, Payload
from timer_service.core.values.stored_json import RawJson

log = logging.getLogger(__name__)

_R = TypeVar("_R")

_DECODED_FACTOR = 16
"""About how many times its size a body needs when it is decoded."""
_WAITING = 20_000
"""How many requests wait."""
_BATCH = 1000
"""How many requests are decoded at a time."""
_REQUEST_BYTES = 1024
"""The memory of a waiting request besides its body."""
_UNHEALTHY_SECONDS = 60
_BYTES_PER_TURN = 64 * 1024

_TOO_MANY_REFUSED = error_reply(Rejection(Code.BUSY, "too many requests were refused; ask again in a second"))
_FULL = error_reply(Rejection(Code.BUSY, "too many requests are waiting; ask again later"))
_LATE = error_reply(Rejection(Code.BUSY, "the request waited for too long; ask again later"))
_UNAVAILABLE = Rejection(Code.BUSY, "the database is not available at the moment; ask again later")
_CONFLICT = Rejection(Code.BUSY, "other transactions use the same rows; ask again later")
_FAILED = Rejection(Code.INTERNAL, "the request failed; see the log of the service")


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


class Answer(NamedTuple):
    """What follows a request after the commit."""

    reply: Payload | RawJson | Rejection
    wakes: tuple[str, ...] = ()
    """The loops for which it wrote rows."""
    lanes: tuple[tuple[Lane, int], ...] = ()
    """The lanes in which it made rows available to workers, and the instants."""


HandleRequests = Callable[[Transaction, Sequence[Asked], int], Awaitable[Sequence[Answer]]]
"""Applies requests in order, within the transaction, at an instant. Returns an answer for each."""

Weigh = Callable[[Reader, Sequence[Asked]], Awaitable[Sequence[Sequence[int]]]]
"""Returns for each request about how many bytes of memory each of its tasks needs, as rows and in the reply."""


class Valid(NamedTuple):
    """A valid request, as it waited and as it was read."""

    entry: Entry[Request]
    asked: Asked


class Batch(NamedTuple):
    """The next requests: the valid ones, and the error replies to the others."""

    valid: Sequence[Valid]
    errors: Sequence[tuple[Request, QueryReply]]


class RequestQueue:
    """The waiting requests of some routes. `receive` is called by the broker, `next_batch` by one task."""

    def __init__(
        self,
        routes: Sequence[RequestRoute],
        metrics: MetricsPort,
        *,
        waiting_bytes: int,
        room: int,
        waiting: int = _WAITING,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waiting_bytes`, `waiting`: the bytes and the number of all requests that wait.

        `room`: how many bytes of memory the requests of a batch need when they are decoded; one may need more.
        """
        self.room = room
        self._routes: Mapping[str, RequestRoute] = {route.name: route for route in routes}
        self._queue = FairQueue[Request](QueueLimits(waiting_bytes, waiting), monotonic)
        self._metrics = metrics
        self._refusals = Refusals(monotonic)
        self._counted = 0
        """How many of the waiting requests are in the gauge."""
        self._removed: list[Request] = []
        """Requests that made room for others. They get a reply with the next batch."""
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
        size = len(request.body)
        left = self._queue.add(request.tenant, request, size=size + _REQUEST_BYTES, weight=size * _DECODED_FACTOR)
        self._count_waiting()
        self._removed += [each.item._replace(body=b"") for each in left if each.item is not request]
        self._changed.set()
        return self._count_error(request, _FULL) if any(each.item is request for each in left) else None

    async def next_batch(self) -> Batch | None:
        """Wait for requests and return some of them; None if the queue is closed and all were returned."""
        while not self._queue and not self._removed:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        taken = self._queue.take(_BATCH, self.room)
        self._count_waiting()
        removed, self._removed = self._removed, []
        errors = [(each, self._count_error(each, _FULL)) for each in removed]
        errors += [(each.item, self._count_error(each.item, _LATE)) for each in taken.late]
        return await self._decode(taken.entries, errors)

    def put_back(self, entries: Sequence[Entry[Request]]) -> None:
        """Return requests of the last batch to their places."""
        self._queue.put_back(entries)
        self._count_waiting()

    def close(self) -> None:
        """Make `next_batch` return None after the requests that wait now."""
        self._closed = True
        self._changed.set()

    async def _decode(self, entries: Sequence[Entry[Request]], errors: list[tuple[Request, QueryReply]]) -> Batch:
        turns = Turns(_BYTES_PER_TURN, pauses=True)
        valid: list[Valid] = []
        for entry in entries:
            request = entry.item
            await turns.take(len(request.body))
            try:
                valid.append(Valid(entry, _read(self._routes[request.name], request)))
            except Rejection as rejection:
                self._refusals.record(request.tenant)
                errors.append((request._replace(body=b""), self._count_error(request, error_reply(rejection))))
        await turns.take(0)
        return Batch(valid, errors)

    def _count_waiting(self) -> None:
        """Correct the gauge, which counts the requests of all queues."""
        self._metrics.requests_waiting(len(self._queue) - self._counted)
        self._counted = len(self._queue)

    def _count_error(self, request: Request, reply: QueryReply) -> QueryReply:
        self._metrics.request_answered(request.name, reply.code or Code.INTERNAL)
        return reply


def _read(route: RequestRoute, request: Request) -> Asked:
    if not re.fullmatch(TENANT_PATTERN, request.tenant):
        reason = "must have 1 to 64 characters out of A-Z, a-z, 0-9, _ and -"
        raise Rejection(Code.INVALID_PAYLOAD, f"the tenant in the subject {reason}", [Fault("tenantId", reason)])
    payload = decode(request.body, route.request, what="request", most_bytes=route.most_bytes)
    return Asked(request.tenant, payload)


class Requests:
    """Applies requests in batches. If a transaction fails, `blame` decides who is at fault.

    Requests of a transaction with an error of one of them are applied in parts, so that a bug affects one request.
    Every request gets a reply. Workers repeat a request whose reply is BUSY or INTERNAL.
    """

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        metrics: MetricsPort,
        weigh: Weigh,
        prepare: Callable[[int], Awaitable[HandleRequests]],
        wake: Callable[[Collection[str], int], Awaitable[None]],
        offer: Callable[[Lane, int], None],
        outages: OutageLog,
    ) -> None:
        """`prepare` returns what handles requests at an instant; it is called before each transaction.

        `wake` wakes loops, and `offer` says that a row of a lane becomes available to workers at an instant.
        """
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._weigh = weigh
        self._prepare = prepare
        self._wake = wake
        self._offer = offer
        self._outages = outages
        self._failure = RecentFailure(_UNHEALTHY_SECONDS)

    @property
    def health(self) -> Health:
        """Down after a request failed, until one succeeds."""
        return self._failure.health

    async def run(self, queue: RequestQueue, subscription: RequestSubscription) -> None:
        """Apply requests until the queue is closed and empty."""
        while (batch := await queue.next_batch()) is not None:
            await subscription.reply(batch.errors)
            weighed = await self._try(queue, subscription, batch.valid, self._weigh_all)
            chosen = _choose(weighed, queue.room)
            queue.put_back(chosen.left)
            await self._reply(subscription, [(each, _too_large(queue.room)) for each in chosen.too_large])
            commit = partial(self._commit, most=len(chosen.applied))
            if applied := await self._try(queue, subscription, chosen.applied, commit):
                await self._succeed(subscription, applied)

    async def _try(
        self,
        queue: RequestQueue,
        subscription: RequestSubscription,
        valid: Sequence[Valid],
        work: Callable[[Sequence[Valid]], Awaitable[Sequence[_R]]],
    ) -> list[tuple[Valid, _R]]:
        """Return the results of `work` for requests. Those that fail get a reply. Those that were not tried wait."""
        results: list[tuple[Valid, _R]] = []

        async def attempt(part: Sequence[Valid]) -> None:
            results.extend(zip(part, await work(part), strict=True))

        try:
            isolated = await isolate(valid, attempt)
        except Exception as error:  # noqa: BLE001 - of the environment, so all others would fail too
            await self._fail(subscription, _without(valid, [each for each, _ in results]), error)
            return results
        for each, reason in isolated.failed:
            await self._fail(subscription, [each], reason)
        untried = _without(valid, [*isolated.done, *(each.item for each in isolated.failed)])
        queue.put_back([each.entry for each in untried])
        return results

    async def _weigh_all(self, valid: Sequence[Valid]) -> Sequence[Sequence[int]]:
        return await self._weigh(self._database.reader, [each.asked for each in valid])

    async def _commit(self, valid: Sequence[Valid], *, most: int) -> Sequence[Answer]:
        """Apply requests in one transaction. Return their answers. Fewer than `most` do not wait for locks."""
        now = self._clock.now()
        handle = await self._prepare(now)

        async def work(tx: Transaction) -> Sequence[Answer]:
            if len(valid) < most:
                await tx.wait_briefly()
            return await handle(tx, [each.asked for each in valid], now)

        return await in_transaction(self._database, work, accepting=True)

    async def _succeed(self, subscription: RequestSubscription, applied: Sequence[tuple[Valid, Answer]]) -> None:
        self._outages.record_success()
        self._failure.clear()
        if loops := {loop for _, answer in applied for loop in answer.wakes}:
            await self._wake(loops, self._clock.now())
        for _, answer in applied:
            for lane, at in answer.lanes:
                self._offer(lane, at)
        await self._reply(subscription, [(each, answer.reply) for each, answer in applied])

    async def _fail(self, subscription: RequestSubscription, valid: Sequence[Valid], error: Exception) -> None:
        """Reply to requests with an error."""
        cause = blame(error)
        answer = _UNAVAILABLE
        if cause in {Blame.BLOCKED, Blame.CONFLICT}:
            answer = _CONFLICT
        elif cause is not Blame.COMMAND:
            self._outages.record_failure(str(error), part="requests")
        else:
            for request in (each.entry.item for each in valid):
                log.error("request failed", exc_info=error, extra={"request": request.name, "tenant": request.tenant})
            self._failure.record(f"requests fail: {error_text(error)}")
            answer = _FAILED
        await self._reply(subscription, [(each, answer) for each in valid])

    async def _reply(
        self, subscription: RequestSubscription, answers: Sequence[tuple[Valid, Payload | RawJson | Rejection]]
    ) -> None:
        """Send replies one by one: they may be large, and are encoded only now."""
        turns = Turns(_BYTES_PER_TURN)
        for valid, answer in answers:
            request, reply = valid.entry.item, encode_answer(answer)
            self._metrics.request_answered(request.name, reply.code or ANSWERED)
            await turns.take(len(reply.body))
            await subscription.reply([(request, reply)])


def _without(valid: Sequence[Valid], others: Sequence[Valid]) -> Sequence[Valid]:
    entries = {id(each.entry) for each in others}
    return [each for each in valid if id(each.entry) not in entries]


class _Chosen(NamedTuple):
    """What becomes of the requests of a batch."""

    applied: list[Valid]
    """What the next transaction applies."""
    left: list[Entry[Request]]
    """What has to wait for the next one."""
    too_large: list[Valid]
    """What is refused, because no transaction has room for it."""


def _choose(weighed: Sequence[tuple[Valid, Sequence[int]]], room: int) -> _Chosen:
    """Return what the next transaction applies, in order: what it has room for. A single task may need more."""
    chosen = _Chosen([], [], [])
    full: set[str] = set()
    used = 0
    for valid, sizes in weighed:
        entry, needed = valid.entry, sum(sizes)
        if needed > room and len(sizes) > 1:
            chosen.too_large.append(valid)
        elif entry.line in full or (chosen.applied and used + needed > room):
            full.add(entry.line)  # the later requests of this tenant wait, too
            chosen.left.append(entry._replace(weight=max(needed, entry.weight)))
        else:
            chosen.applied.append(valid)
            used += needed
    return chosen


def _too_large(room: int) -> Rejection:
    message = f"the tasks of the request need more than {room} bytes of memory together; send them in smaller requests"
    return Rejection(Code.TOO_LARGE, message)
