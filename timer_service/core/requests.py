"""Applies the requests of workers: collects them while a transaction runs, and applies them in the next one.

A worker gets its reply after the commit. If a reply is lost, the worker repeats the request, and nothing more changes.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from timer_service.core.blame import Blame, blame
from timer_service.core.broker import QueryReply, Request, RequestSubscription
from timer_service.core.clock import Clock
from timer_service.core.database import Database, Transaction
from timer_service.core.error_text import error_text
from timer_service.core.errors import Code, Rejection
from timer_service.core.health import Health, OutageLog, RecentFailure
from timer_service.core.message import MAX_MESSAGE_BYTES, Payload
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.request_intake import Asked, Intake, error_reply
from timer_service.core.route import Lane
from timer_service.core.stored_json import RawJson
from timer_service.core.transactions import in_transaction

log = logging.getLogger(__name__)

ANSWERED = "answered"
"""The outcome of a request in the metrics. The outcome of an error is its code."""
_UNHEALTHY_SECONDS = 60
_PARTS_OF_BLOCKED = 8
"""Into how many parts a blocked transaction is divided. Each step of the search waits for a lock."""

_UNAVAILABLE = error_reply(Rejection(Code.BUSY, "the database is not available at the moment; ask again later"))
_CONFLICT = error_reply(Rejection(Code.BUSY, "other transactions use the same rows; ask again later"))
_FAILED = error_reply(Rejection(Code.INTERNAL, "the request failed; see the log of the service"))


class Answer(NamedTuple):
    """What follows a request after the commit."""

    reply: Payload | RawJson | Rejection
    wakes: tuple[str, ...] = ()
    """The loops for which it wrote rows."""
    lanes: tuple[tuple[Lane, int], ...] = ()
    """The lanes in which it made rows available to workers, and the instants."""


HandleRequests = Callable[[Transaction, Sequence[Asked], int], Awaitable[Sequence[Answer]]]
"""Applies requests in order, within the transaction, at an instant. Returns an answer for each."""

Valid = Sequence[tuple[Request, Asked]]


class Requests:
    """Applies requests in batches. If a transaction fails, `blame` decides who is at fault.

    Requests of a transaction with an error of one of them are applied in halves, so that a bug affects one request.
    Every request gets a reply. Workers repeat a request whose reply is BUSY or INTERNAL.
    """

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        metrics: MetricsPort,
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
        self._prepare = prepare
        self._wake = wake
        self._offer = offer
        self._outages = outages
        self._failure = RecentFailure(_UNHEALTHY_SECONDS)

    @property
    def health(self) -> Health:
        """Down after a request failed, until one succeeds."""
        return self._failure.health

    async def run(self, intake: Intake, subscription: RequestSubscription) -> None:
        """Apply requests until the intake is closed and empty."""
        while (batch := await intake.next_batch()) is not None:
            await subscription.reply(batch.errors)
            if batch.valid:
                await self._apply(subscription, batch.valid)

    async def _apply(self, subscription: RequestSubscription, valid: Valid) -> None:
        answers = await self._commit([asked for _, asked in valid])
        if isinstance(answers, Exception):
            await self._divide(subscription, valid, answers)
            return
        self._outages.record_success(part="requests")
        self._failure.clear()
        await self._wake_for(answers)
        replies = [
            (request, self._encode(request, answer)) for (request, _), answer in zip(valid, answers, strict=True)
        ]
        await subscription.reply(replies)

    async def _commit(self, asked: Sequence[Asked]) -> Sequence[Answer] | Exception:
        """Apply requests in one transaction. Return their answers, or why it failed."""
        now = self._clock.now()
        try:
            handle = await self._prepare(now)
            return await in_transaction(self._database, lambda tx: handle(tx, asked, now), accepting=True)
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            return error

    async def _divide(self, subscription: RequestSubscription, valid: Valid, error: Exception) -> None:
        """Apply the requests of a failed transaction in smaller ones if that can help, else reply with an error."""
        cause = blame(error)
        if cause in {Blame.OUTAGE, Blame.BUSY, Blame.SETUP}:
            self._outages.record_failure(str(error), part="requests")
            await self._refuse(subscription, valid, _UNAVAILABLE)
        elif len(valid) > 1:
            about = {"count": len(valid), "reason": error_text(error)}
            log.warning("requests failed; applying them in parts", extra=about)
            size = -(-len(valid) // (_PARTS_OF_BLOCKED if cause is Blame.BLOCKED else 2))
            for start in range(0, len(valid), size):
                await self._apply(subscription, valid[start : start + size])
        elif cause is Blame.COMMAND:
            ((request, _),) = valid
            log.error("request failed", exc_info=error, extra={"request": request.name, "tenant": request.tenant})
            self._failure.record(f"requests fail: {error_text(error)}")
            await self._refuse(subscription, valid, _FAILED)
        else:
            await self._refuse(subscription, valid, _CONFLICT)

    async def _refuse(self, subscription: RequestSubscription, valid: Valid, reply: QueryReply) -> None:
        for request, _ in valid:
            self._metrics.request_answered(request.name, reply.code or Code.INTERNAL)
        await subscription.reply([(request, reply) for request, _ in valid])

    async def _wake_for(self, answers: Sequence[Answer]) -> None:
        if loops := {loop for answer in answers for loop in answer.wakes}:
            await self._wake(loops, self._clock.now())
        for answer in answers:
            for lane, at in answer.lanes:
                self._offer(lane, at)

    def _encode(self, request: Request, answer: Answer) -> QueryReply:
        reply = encode_answer(answer.reply)
        self._metrics.request_answered(request.name, reply.code or ANSWERED)
        return reply


def encode_answer(answer: Payload | RawJson | Rejection) -> QueryReply:
    """Return the reply to a request. A reply that is too large for the broker becomes an error."""
    if isinstance(answer, Rejection):
        return error_reply(answer)
    body = answer.encode() if isinstance(answer, RawJson) else answer.model_dump_json(exclude_none=True).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        message = f"the reply would have {len(body)} bytes; the limit is {MAX_MESSAGE_BYTES}"
        return error_reply(Rejection(Code.TOO_LARGE, message))
    return QueryReply(body)
