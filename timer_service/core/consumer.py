"""The consumer: decodes deliveries, applies the commands in one transaction, replies, and settles the deliveries."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic_core import to_json

from timer_service.core.broker import TRANSIENT, Broker, Delivery, PublishStatus, Reply, Subscription
from timer_service.core.clock import Clock
from timer_service.core.codec import REPLY_TO, decode_command, decode_envelope
from timer_service.core.database import Database, Transaction
from timer_service.core.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.health import HEALTHY, Health, OutageLog
from timer_service.core.message import Command, Envelope, Position, TenantPayload
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.rejection import Rejected
from timer_service.core.transactions import in_transaction

log = logging.getLogger(__name__)

_REDELIVERY_DELAY = timedelta(seconds=1)
_LONGEST_REDELIVERY_DELAY = 60 * _REDELIVERY_DELAY
_MAX_INTERNAL_ERRORS = 10
_SUBJECT = re.compile(r"[^\s*>]{1,256}")


class CommandResult(NamedTuple):
    """How one command ended."""

    name: str
    wake_at: int | None = None
    """When a row it wrote becomes available."""
    view: Mapping[str, Any] | None = None
    """The fields of its reply in addition to the outcome, if the command asked for them."""


Handle = Callable[[Transaction, Sequence[Command], int], Awaitable[Sequence[CommandResult]]]
"""Applies commands in order, within the transaction, at an instant; returns one result for each."""


@dataclass(frozen=True, slots=True)
class Route:
    """The handler for some types of commands, and what to call when rows that it wrote become available."""

    payloads: tuple[type[TenantPayload], ...]
    handle: Handle
    wake: Callable[[int], Awaitable[None]]


class _Accepted(NamedTuple):
    """A decoded delivery and its route."""

    delivery: Delivery
    command: Command
    route: Route


class Consumer:
    """The handler of one subscription's commands. It handles each batch in one transaction."""

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        routes: Sequence[Route],
        clock: Clock,
        metrics: MetricsPort,
        batch_size: int,
        reply_prefix: str,
        outages: OutageLog | None = None,
    ) -> None:
        self._database = database
        self._broker = broker
        self._routes_in_order = routes  # the same for every batch, so that instances lock rows in the same order
        self._routes = {payload: route for route in routes for payload in route.payloads}
        self._payloads = {payload.type: payload for payload in self._routes}
        self._clock = clock
        self._metrics = metrics
        self._batch_size = batch_size
        self._reply_prefix = reply_prefix
        self._outages = outages or OutageLog()
        self._internal_errors: Counter[Position] = Counter()

    @property
    def health(self) -> Health:
        """Whether commands can be handled, and the reason if not."""
        return HEALTHY

    @property
    def stalled(self) -> bool:
        """Whether the handling of a batch hangs."""
        return False

    async def run(self, subscription: Subscription) -> None:
        """Handle batches until the subscription is closed."""
        while batch := await subscription.next_batch(self._batch_size):
            try:
                await self.handle(subscription, batch)
            except Exception:
                log.exception("batch failed; its unsettled commands are delivered again", extra={"count": len(batch)})
            if not self._database.health.usable:
                await asyncio.sleep(
                    _REDELIVERY_DELAY.total_seconds()
                )  # else every command would be redelivered in a circle

    async def handle(self, subscription: Subscription, batch: Sequence[Delivery]) -> None:
        """Handle one batch and settle every delivery in it."""
        accepted, rejected = self._decode(batch)
        rejected += await self._apply(subscription, accepted)
        if rejected:
            await self._reject(subscription, rejected)

    def _decode(self, batch: Sequence[Delivery]) -> tuple[list[_Accepted], list[Rejected]]:
        accepted: list[_Accepted] = []
        rejected: list[Rejected] = []
        for delivery in batch:
            envelope: Envelope | None = None
            try:
                envelope = decode_envelope(delivery.body)
                command = decode_command(delivery, envelope, self._payloads)
            except Rejection as rejection:
                rejected.append(Rejected(delivery, _without_context(rejection), _without_payload(envelope)))
            else:
                accepted.append(_Accepted(delivery, command, self._routes[type(command.payload)]))
        return accepted, rejected

    async def _apply(self, subscription: Subscription, accepted: Sequence[_Accepted]) -> list[Rejected]:
        """Commit and acknowledge the commands; return those that can never be handled."""
        if not accepted:
            return []
        try:
            results = await self._commit(accepted)
        except DatabaseUnavailableError as error:
            self._outages.record_failure(str(error))
            log.debug("commands wait for the database", extra={"count": len(accepted), "reason": str(error)})
            await subscription.retry([each.delivery for each in accepted], _REDELIVERY_DELAY)
        except Exception as error:  # noqa: BLE001 - `_isolate` logs it
            return await self._isolate(subscription, accepted, error)
        else:
            self._outages.record_success()
            await self._finish(subscription, accepted, results)
        return []

    async def _commit(self, accepted: Sequence[_Accepted]) -> list[CommandResult]:
        now = self._clock.now()

        async def handle(tx: Transaction) -> list[CommandResult]:
            results: dict[int, CommandResult] = {}
            for route in self._routes_in_order:
                indexes = [index for index, each in enumerate(accepted) if each.route is route]
                commands = [accepted[index].command for index in indexes]
                if commands:
                    results.update(zip(indexes, await route.handle(tx, commands, now), strict=True))
            return [results[index] for index in range(len(accepted))]

        return await in_transaction(self._database, handle)

    async def _isolate(
        self, subscription: Subscription, accepted: Sequence[_Accepted], error: Exception
    ) -> list[Rejected]:
        """Handle a failed batch in halves, down to one command, so that a bug affects only one command."""
        if (half := len(accepted) // 2) > 0:
            log.warning("batch failed; handling it in halves", exc_info=error, extra={"count": len(accepted)})
            return [
                *await self._apply(subscription, accepted[:half]),
                *await self._apply(subscription, accepted[half:]),
            ]
        (only,) = accepted
        log.error("command failed", exc_info=error, extra={"command_id": only.command.id})
        # Not counted by deliveries: a delivery during an outage is not an error of the command.
        self._internal_errors[only.delivery.position] += 1
        if self._internal_errors[only.delivery.position] < _MAX_INTERNAL_ERRORS:
            await subscription.retry([only.delivery], _redelivery_delay(only.delivery))
            return []
        times = self._internal_errors.pop(only.delivery.position)
        rejection = Rejection(Code.INTERNAL, f"failed {times} times: {error!r}")
        return [Rejected(only.delivery, rejection, decode_envelope(only.delivery.body))]

    async def _finish(
        self, subscription: Subscription, accepted: Sequence[_Accepted], results: Sequence[CommandResult]
    ) -> None:
        """Do the work after the commit: count outcomes, wake loops, send replies, acknowledge deliveries."""
        replies: list[Reply] = []
        for each, result in zip(accepted, results, strict=True):
            self._metrics.command_handled(each.command.payload.type, result.name)
            self._internal_errors.pop(each.delivery.position, None)
            if self._may_reply(each.command.reply_to):
                body = {"commandId": each.command.id, "outcome": result.name, **(result.view or {})}
                replies.append(Reply(each.command.reply_to or "", to_json(body)))
        await _wake(accepted, results)
        if replies:
            await self._broker.reply(replies)
        await subscription.acknowledge([each.delivery for each in accepted])

    def _may_reply(self, to: str | None) -> bool:
        """Return whether `to` is an inbox. A client must not be able to make the service publish elsewhere."""
        return to is not None and to.startswith(self._reply_prefix) and _SUBJECT.fullmatch(to) is not None

    async def _reject(self, subscription: Subscription, rejected: Sequence[Rejected]) -> None:
        """Store dead letters, then terminate the deliveries. A delivery without a stored letter is retried."""
        now = self._clock.now()
        letters = [each.messages(now, self._broker.features.max_message_bytes) for each in rejected]
        results = iter(await self._broker.publish([message for each in letters for message in each]))
        stored: list[Rejected] = []
        for each, messages in zip(rejected, letters, strict=True):
            letter, *events = [next(results).status for _ in messages]
            if letter is PublishStatus.PUBLISHED and TRANSIENT.isdisjoint(events):
                stored.append(each)
        kept = {id(each) for each in stored}
        await self._reply_to_rejected(stored)
        await subscription.terminate([each.delivery for each in stored])
        for each in rejected:
            if id(each) not in kept:
                log.error("dead letter not stored; retrying the command", extra={"command_id": each.command_id})
                await subscription.retry([each.delivery], _redelivery_delay(each.delivery))

    async def _reply_to_rejected(self, rejected: Sequence[Rejected]) -> None:
        replies: list[Reply] = []
        for each in rejected:
            known = each.envelope is not None and each.envelope.type in self._payloads
            name = each.envelope.type if each.envelope and known else "unknown"
            self._metrics.command_handled(name, "rejected")
            self._metrics.dead_letter_stored(each.rejection.code)
            log.info(
                "command rejected",
                extra={
                    "command_id": each.command_id,
                    "code": each.rejection.code,
                    "reason": each.rejection.message,
                },
            )
            to = each.delivery.headers.get(REPLY_TO)
            if self._may_reply(to):
                replies.append(Reply(to or "", each.reply()))
        if replies:
            await self._broker.reply(replies)


async def _wake(accepted: Sequence[_Accepted], results: Sequence[CommandResult]) -> None:
    """Wake the loops of each route for the earliest row that it wrote."""
    wakes: dict[Callable[[int], Awaitable[None]], int] = {}
    for each, result in zip(accepted, results, strict=True):
        if result.wake_at is not None:
            wakes[each.route.wake] = min(result.wake_at, wakes.get(each.route.wake, result.wake_at))
    for wake, at in wakes.items():
        await wake(at)


def _without_context(rejection: Rejection) -> Rejection:
    """Return a rejection without its cause and traceback, which would keep the decoded command in memory."""
    rejection.__cause__ = rejection.__context__ = None
    return rejection.with_traceback(None)


def _without_payload(envelope: Envelope | None) -> Envelope | None:
    return envelope and envelope.model_copy(update={"payload": {}})


def _redelivery_delay(delivery: Delivery) -> timedelta:
    return min(_REDELIVERY_DELAY * delivery.attempt, _LONGEST_REDELIVERY_DELAY)
