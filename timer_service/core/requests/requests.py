"""Requests of workers: collected while a transaction runs, and applied together in the next one.

A transaction applies the first requests, as many as it has room for. The others go back to the queue. A worker gets its
reply after the commit. If a reply is lost, the worker repeats the request, and nothing more changes.
"""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.isolate import isolate
from timer_service.core.intake.route import Lane
from timer_service.core.ports.broker import Replies, Request, RequestSubscription
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import Health, OutageLog, RecentFailure
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.ports.turns import Turns
from timer_service.core.requests.bodies import ANSWERED, decode, encode_answer, error_reply
from timer_service.core.requests.fair_queue import Entry, FairQueue, QueueLimits
from timer_service.core.values.address import MAX_MESSAGE_BYTES, TENANT_PATTERN
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import Code, Fault, Rejection
from timer_service.core.values.message import Payload
from timer_service.core.values.stored_json import RawJson

log = logging.getLogger(__name__)

_WAITING = 20_000
"""How many requests wait."""
_BATCH = 1000
"""How many requests are decoded at a time."""
_UNHEALTHY_SECONDS = 60
_BYTES_PER_TURN = 64 * 1024

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
"""Applies the first requests, in order and within the transaction, at an instant.

Returns an answer for each that it has applied: one at least, and as many as the transaction has room for.
"""


class Batch(NamedTuple):
    """The next requests: the valid ones, as they waited and as they were read, and the error replies to the others."""

    valid: Sequence[tuple[Entry, Asked]]
    errors: Replies


class RequestQueue(FairQueue):
    """The waiting requests of some routes."""

    def __init__(
        self,
        routes: Sequence[RequestRoute],
        metrics: MetricsPort,
        *,
        waiting_bytes: int,
        batch_bytes: int,
        waiting: int = _WAITING,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waiting_bytes`, `waiting`: the bytes and the number of all requests that wait.

        `batch_bytes`: the bytes of the requests of a batch. A single one may have more.
        """
        super().__init__(
            QueueLimits(waiting_bytes, waiting),
            answered=metrics.request_answered,
            waiting=metrics.requests_waiting,
            monotonic=monotonic,
        )
        self._batch_bytes = batch_bytes
        self._routes: Mapping[str, RequestRoute] = {route.name: route for route in routes}

    @property
    def names(self) -> Sequence[str]:
        """The names of the requests."""
        return list(self._routes)

    async def next_batch(self) -> Batch | None:
        """Wait for requests and return some of them; None if the queue is closed and all were returned."""
        taken = await self.next(_BATCH, self._batch_bytes)
        if not any(taken):
            return None
        turns = Turns(_BYTES_PER_TURN, pauses=True)
        valid: list[tuple[Entry, Asked]] = []
        errors = [*taken.late]
        for entry in taken.entries:
            await turns.take(len(entry.request.body))
            try:
                valid.append((entry, _read(self._routes[entry.request.name], entry.request)))
            except Rejection as rejection:
                errors += self.refuse([entry.request], error_reply(rejection))
        await turns.take(0)
        return Batch(valid, errors)


def _read(route: RequestRoute, request: Request) -> Asked:
    """Return a request as its handler gets it. Raises `Rejection`."""
    if not re.fullmatch(TENANT_PATTERN, request.tenant):
        reason = "must have 1 to 64 characters out of A-Z, a-z, 0-9, _ and -"
        raise Rejection(Code.INVALID_PAYLOAD, f"the tenant in the subject {reason}", [Fault("tenantId", reason)])
    return Asked(request.tenant, decode(request.body, route.request, what="request", most_bytes=route.most_bytes))


@dataclass(kw_only=True, eq=False)
class Requests:
    """Applies requests in batches. If a transaction fails, `blame` decides who is at fault.

    Requests of a transaction with an error of one of them are applied in parts, so that a bug affects one request.
    Every request gets a reply. Workers repeat a request whose reply is BUSY or INTERNAL.
    """

    database: Database
    clock: Clock
    metrics: MetricsPort
    prepare: Callable[[int], Awaitable[HandleRequests]]
    """Returns what handles requests at an instant. Called before each transaction."""
    wake: Callable[[Collection[str], int], Awaitable[None]]
    """Wakes loops at an instant."""
    offer: Callable[[Lane, int], None]
    """Says that a row of a lane becomes available to workers at an instant."""
    outages: OutageLog
    _failure: RecentFailure = field(init=False, default_factory=lambda: RecentFailure(_UNHEALTHY_SECONDS))

    @property
    def health(self) -> Health:
        """Down after a request failed, until one succeeds."""
        return self._failure.health

    async def run(self, queue: RequestQueue, subscription: RequestSubscription) -> None:
        """Apply requests until the queue is closed and empty."""
        while (batch := await queue.next_batch()) is not None:
            await subscription.reply(batch.errors)
            await self._apply(queue, subscription, batch.valid)

    async def _apply(
        self, queue: RequestQueue, subscription: RequestSubscription, batch: Sequence[tuple[Entry, Asked]]
    ) -> None:
        """Apply requests, and reply to those that were applied or failed. The others wait again."""
        answers: dict[int, Answer] = {}  # by the number of the request in the batch

        async def attempt(part: Sequence[int]) -> None:
            done = await self._commit([batch[each][1] for each in part], is_part=len(part) < len(batch))
            answers.update(zip(part, done, strict=False))

        numbers = range(len(batch))
        try:
            isolated = await isolate(numbers, attempt)
            failed = {each.item: each.error for each in isolated.failed}
        except Exception as error:  # noqa: BLE001 - of the environment, so all others would fail too
            failed = {number: error for number in numbers if number not in answers}
        queue.put_back([batch[number][0] for number in numbers if number not in answers and number not in failed])
        replies = {number: self._fail(batch[number][0].request, error) for number, error in failed.items()}
        if answers:  # after the failures: one success shows that requests can be applied
            await self._succeed(answers.values())
        turns = Turns(_BYTES_PER_TURN)
        for number, answer in [*replies.items(), *((number, each.reply) for number, each in answers.items())]:
            request, reply = batch[number][0].request, encode_answer(answer)  # one at a time: it may be large
            self.metrics.request_answered(request.name, reply.code or ANSWERED)
            await turns.take(len(reply.body))
            await subscription.reply([(request, reply)])

    async def _commit(self, asked: Sequence[Asked], *, is_part: bool) -> Sequence[Answer]:
        """Apply the first requests in one transaction. Return their answers. A part waits only briefly for locks."""
        now = self.clock.now()
        handle = await self.prepare(now)

        async def work(tx: Transaction) -> Sequence[Answer]:
            if is_part:
                await tx.wait_briefly()
            return await handle(tx, asked, now)

        return await in_transaction(self.database, work, accepting=True)  # a worker acts on the answer

    async def _succeed(self, answers: Collection[Answer]) -> None:
        """Record that requests were applied, and wake the loops and offer the lanes for which they wrote rows."""
        self.outages.record_success()
        self._failure.clear()
        if loops := {loop for answer in answers for loop in answer.wakes}:
            await self.wake(loops, self.clock.now())
        for lane, at in (each for answer in answers for each in answer.lanes):
            self.offer(lane, at)

    def _fail(self, request: Request, error: Exception) -> Rejection:
        """Record that a request failed. Return the reply."""
        cause = blame(error)
        if cause in {Blame.BLOCKED, Blame.CONFLICT}:
            return _CONFLICT
        if cause is not Blame.COMMAND:
            self.outages.record_failure(str(error), part="requests")
            return _UNAVAILABLE
        log.error("request failed", exc_info=error, extra={"request": request.name, "tenant": request.tenant})
        self._failure.record(f"requests fail: {error_text(error)}")
        return _FAILED
