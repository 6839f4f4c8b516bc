"""Applies the requests of workers: collects them while a transaction runs, and applies them in the next one.

What one transaction reads and replies has a limit (core/request_portions.py). Requests beyond it are applied later. A
worker gets its reply after the commit. If a reply is lost, the worker repeats the request, and nothing more changes.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.lanes import Lane
from timer_service.core.ports.broker import QueryReply, Request, RequestSubscription
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Reader, Transaction
from timer_service.core.ports.health import Health, OutageLog, RecentFailure
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.ports.turns import Turns
from timer_service.core.requests.request_intake import LATE, Asked, Intake, Valid, error_reply
from timer_service.core.requests.request_portions import Lists, Piece, Portions, Work
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Payload
from timer_service.core.values.stored_json import RawJson, write_lists

log = logging.getLogger(__name__)

ANSWERED = "answered"
"""The outcome of a request in the metrics. The outcome of an error is its code."""
_UNHEALTHY_SECONDS = 60
_BYTES_PER_TURN = 64 * 1024
_ALL_FAIL = {Blame.OUTAGE, Blame.BUSY, Blame.SETUP}
"""Errors that every other transaction would have, too."""
_PARTS_OF_BLOCKED = 8
"""Into how many parts a blocked transaction is divided. Each step of the search waits for a lock."""

_UNAVAILABLE = error_reply(Rejection(Code.BUSY, "the database is not available at the moment; ask again later"))
_CONFLICT = error_reply(Rejection(Code.BUSY, "other transactions use the same rows; ask again later"))
_FAILED = error_reply(Rejection(Code.INTERNAL, "the request failed; see the log of the service"))


class Answer(NamedTuple):
    """What follows a request, or some of its items, after the commit."""

    reply: Payload | RawJson | Lists | Rejection
    """`Lists` if the request has items."""
    wakes: tuple[str, ...] = ()
    """The loops for which it wrote rows."""
    lanes: tuple[tuple[Lane, int], ...] = ()
    """The lanes in which it made rows available to workers, and the instants."""


HandleRequests = Callable[[Transaction, Sequence[Asked], int], Awaitable[Sequence[Answer]]]
"""Applies requests in order, within the transaction, at an instant. Returns an answer for each."""

Weigh = Callable[[Reader, Sequence[Asked]], Awaitable[Sequence[Sequence[int]]]]
"""Returns for each request about how many bytes of memory each of its items needs, as rows and in the reply."""


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
        weigh: Weigh,
        portions: Portions,
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
        self._portions = portions
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
        while (batch := await intake.next_batch(wait=self._portions.is_empty)) is not None:
            await subscription.reply(batch.errors)
            late = self._portions.remove_late(intake.is_late)
            await self._refuse(subscription, late, LATE)
            works = await self._read(subscription, batch.valid)
            pieces, left = self._portions.choose(works)
            large = [each.waiting for each in left if self._portions.is_large(each)]
            intake.put_back([each.waiting for each in left if not self._portions.is_large(each)], large)
            if pieces:
                await self._apply(subscription, pieces)

    async def _read(self, subscription: RequestSubscription, valid: Sequence[Valid]) -> list[Work]:
        """Return how much memory requests need. Those of which the database cannot say it are refused."""
        try:
            sizes = await self._weigh(self._database.reader, [each.asked for each in valid]) if valid else ()
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            if len(valid) == 1 or blame(error) in _ALL_FAIL:
                await self._fail(subscription, [Work(*each, ()) for each in valid], error)
                return []
            half = len(valid) // 2
            return [*await self._read(subscription, valid[:half]), *await self._read(subscription, valid[half:])]
        return [Work(*each, size) for each, size in zip(valid, sizes, strict=True)]

    async def _apply(self, subscription: RequestSubscription, pieces: Sequence[Piece]) -> None:
        answers = await self._commit([each.asked for each in pieces])
        if isinstance(answers, Exception):
            await self._divide(subscription, pieces, answers)
            return
        self._outages.record_success(part="requests")
        self._failure.clear()
        await self._wake_for(answers)
        await self._reply(subscription, list(zip(pieces, answers, strict=True)))

    async def _reply(self, subscription: RequestSubscription, answered: Sequence[tuple[Piece, Answer]]) -> None:
        """Send the replies to the requests whose last items were applied, a few at a time: they may be large."""
        turns = Turns(_BYTES_PER_TURN)
        replies: list[tuple[Request, QueryReply]] = []
        used = 0
        for piece, answer in answered:
            if (reply := self._finish(piece, answer)) is None:
                continue
            replies.append((piece.work.waiting.request, reply))
            used += len(reply.body)
            if used > _BYTES_PER_TURN:
                await subscription.reply(replies)
                replies, used = [], 0
            await turns.take(len(reply.body))
        await subscription.reply(replies)

    def _finish(self, piece: Piece, answer: Answer) -> QueryReply | None:
        """Return the reply to a request; None if some of its items are not applied yet."""
        work, reply = piece.work, answer.reply
        if isinstance(reply, Mapping):
            work.record(reply)
            work.applied += piece.items
            if work.applied < len(work.sizes):
                return None
            reply = write_lists(work.lists)
        encoded = encode_answer(reply)
        self._metrics.request_answered(work.waiting.request.name, encoded.code or ANSWERED)
        return encoded

    async def _commit(self, asked: Sequence[Asked]) -> Sequence[Answer] | Exception:
        """Apply requests in one transaction. Return their answers, or why it failed."""
        now = self._clock.now()
        try:
            handle = await self._prepare(now)
            return await in_transaction(self._database, lambda tx: handle(tx, asked, now), accepting=True)
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            return error

    async def _divide(self, subscription: RequestSubscription, pieces: Sequence[Piece], error: Exception) -> None:
        """Apply the requests of a failed transaction in smaller ones if that can help, else reply with an error."""
        cause = blame(error)
        if len(pieces) == 1 or cause in _ALL_FAIL:
            await self._fail(subscription, [each.work for each in pieces], error)
            return
        about = {"count": len(pieces), "reason": error_text(error)}
        log.warning("requests failed; applying them in parts", extra=about)
        size = -(-len(pieces) // (_PARTS_OF_BLOCKED if cause is Blame.BLOCKED else 2))
        for start in range(0, len(pieces), size):
            await self._apply(subscription, pieces[start : start + size])

    async def _fail(self, subscription: RequestSubscription, works: Sequence[Work], error: Exception) -> None:
        """Reply to requests with an error."""
        cause = blame(error)
        if cause in _ALL_FAIL:
            self._outages.record_failure(str(error), part="requests")
            await self._refuse(subscription, works, _UNAVAILABLE)
        elif cause is Blame.COMMAND:
            for each in works:
                about = {"request": each.waiting.request.name, "tenant": each.asked.tenant}
                log.error("request failed", exc_info=error, extra=about)
            self._failure.record(f"requests fail: {error_text(error)}")
            await self._refuse(subscription, works, _FAILED)
        else:
            await self._refuse(subscription, works, _CONFLICT)

    async def _refuse(self, subscription: RequestSubscription, works: Sequence[Work], reply: QueryReply) -> None:
        for each in works:
            self._portions.forget(each)
            self._metrics.request_answered(each.waiting.request.name, reply.code or Code.INTERNAL)
        await subscription.reply([(each.waiting.request, reply) for each in works])

    async def _wake_for(self, answers: Sequence[Answer]) -> None:
        if loops := {loop for answer in answers for loop in answer.wakes}:
            await self._wake(loops, self._clock.now())
        for answer in answers:
            for lane, at in answer.lanes:
                self._offer(lane, at)


def encode_answer(answer: Payload | RawJson | Rejection) -> QueryReply:
    """Return the reply to a request. A reply that is too large for the broker becomes an error."""
    if isinstance(answer, Rejection):
        return error_reply(answer)
    body = answer.encode() if isinstance(answer, RawJson) else answer.model_dump_json(exclude_none=True).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        message = f"the reply would have {len(body)} bytes; the limit is {MAX_MESSAGE_BYTES}"
        return error_reply(Rejection(Code.TOO_LARGE, message))
    return QueryReply(body)
