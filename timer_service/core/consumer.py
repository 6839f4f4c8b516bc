"""The consumer: deliveries -> commands -> one transaction -> replies, acknowledgements, dead letters."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic_core import to_json

from timer_service.core.broker import ABSOLVED, Broker, Delivery, PublishStatus, Reply, Subscription
from timer_service.core.clock import Clock
from timer_service.core.codec import REPLY_TO, decode_command, decode_envelope
from timer_service.core.database import Database, Transaction
from timer_service.core.errors import Code, DatabaseUnavailableError, Rejection
from timer_service.core.message import Command, Envelope, Position, TenantPayload
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.rejection import Rejected
from timer_service.core.transactions import in_transaction

log = logging.getLogger(__name__)

_RETRY_DELAY = timedelta(seconds=1)
_LONGEST_RETRY_DELAYS = 60
_ATTEMPTS_AT_A_FAULT_OF_OURS = 10
_SUBJECT = re.compile(r"[^\s*>]{1,256}")


class CommandResult(NamedTuple):
    """How one command ended."""

    name: str
    wake_at: int | None = None
    """When a row it wrote becomes available."""
    view: Mapping[str, Any] | None = None
    """What its reply tells besides the outcome, if it was asked for."""


Handle = Callable[[Transaction, Sequence[Command], int], Awaitable[Sequence[CommandResult]]]
"""Applies commands, in order, within the transaction; returns one outcome each."""


@dataclass(frozen=True, slots=True)
class Route:
    """Which commands go to which handler, and whom to wake when rows they wrote become available."""

    payloads: tuple[type[TenantPayload], ...]
    handle: Handle
    wake: Callable[[int], Awaitable[None]]


class _Accepted(NamedTuple):
    """A delivery that could be read, and where it goes."""

    delivery: Delivery
    command: Command
    route: Route


class Consumer:
    """Handles the commands of one subscription, a batch in one transaction."""

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
    ) -> None:
        self._database = database
        self._broker = broker
        self._in_order = routes  # in every batch: so instances lock the rows of several slices in the same order
        self._routes = {payload: route for route in routes for payload in route.payloads}
        self._payloads = {payload.type: payload for payload in self._routes}
        self._clock = clock
        self._metrics = metrics
        self._batch_size = batch_size
        self._reply_prefix = reply_prefix
        self._faults: Counter[Position] = Counter()

    async def run(self, subscription: Subscription) -> None:
        """Handle batches until the subscription is closed."""
        while batch := await subscription.next_batch(self._batch_size):
            try:
                await self.handle(subscription, batch)
            except Exception:
                log.exception("what is not settled of a batch is delivered again", extra={"count": len(batch)})
            if not self._database.health.usable:
                await asyncio.sleep(_RETRY_DELAY.total_seconds())  # or all commands would go round and round meanwhile

    async def handle(self, subscription: Subscription, batch: Sequence[Delivery]) -> None:
        """Handle one batch and settle each of its deliveries."""
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
                rejected.append(Rejected(delivery, _detached(rejection), _without_payload(envelope)))
            else:
                accepted.append(_Accepted(delivery, command, self._routes[type(command.payload)]))
        return accepted, rejected

    async def _apply(self, subscription: Subscription, accepted: Sequence[_Accepted]) -> list[Rejected]:
        """Commit and acknowledge; return those that can't be handled after all."""
        if not accepted:
            return []
        try:
            outcomes = await self._commit(accepted)
        except DatabaseUnavailableError as error:
            log.warning("commands wait for the database", extra={"count": len(accepted), "reason": str(error)})
            await subscription.retry([each.delivery for each in accepted], _RETRY_DELAY)
        except Exception as error:  # noqa: BLE001 - logged where it is isolated
            return await self._isolate(subscription, accepted, error)
        else:
            await self._conclude(subscription, accepted, outcomes)
        return []

    async def _commit(self, accepted: Sequence[_Accepted]) -> list[CommandResult]:
        now = self._clock.now()

        async def handle(tx: Transaction) -> list[CommandResult]:
            outcomes: dict[int, CommandResult] = {}
            for route in self._in_order:
                mine = [index for index, each in enumerate(accepted) if each.route is route]
                commands = [accepted[index].command for index in mine]
                if commands:
                    outcomes.update(zip(mine, await route.handle(tx, commands, now), strict=True))
            return [outcomes[index] for index in range(len(accepted))]

        return await in_transaction(self._database, handle)

    async def _isolate(
        self, subscription: Subscription, accepted: Sequence[_Accepted], error: Exception
    ) -> list[Rejected]:
        """Halve a failed batch until it is one, so that a fault of ours costs only the command that meets it."""
        if (half := len(accepted) // 2) > 0:
            log.warning("batch failed, handling it in halves", exc_info=error, extra={"count": len(accepted)})
            return [
                *await self._apply(subscription, accepted[:half]),
                *await self._apply(subscription, accepted[half:]),
            ]
        (only,) = accepted
        log.error("command failed", exc_info=error, extra={"command_id": only.command.id})
        # Not its deliveries: those of an outage are no fault.
        self._faults[only.delivery.position] += 1
        if self._faults[only.delivery.position] < _ATTEMPTS_AT_A_FAULT_OF_OURS:
            await subscription.retry([only.delivery], _patience(only.delivery))
            return []
        times = self._faults.pop(only.delivery.position)
        rejection = Rejection(Code.INTERNAL, f"failed {times} times: {error!r}")
        return [Rejected(only.delivery, rejection, decode_envelope(only.delivery.body))]

    async def _conclude(
        self, subscription: Subscription, accepted: Sequence[_Accepted], outcomes: Sequence[CommandResult]
    ) -> None:
        replies: list[Reply] = []
        for each, outcome in zip(accepted, outcomes, strict=True):
            self._metrics.command_handled(each.command.payload.type, outcome.name)
            self._faults.pop(each.delivery.position, None)
            if self._may_reply(each.command.reply_to):
                body = {"commandId": each.command.id, "outcome": outcome.name, **(outcome.view or {})}
                replies.append(Reply(each.command.reply_to or "", to_json(body)))
        await _wake(accepted, outcomes)
        if replies:
            await self._broker.reply(replies)
        await subscription.acknowledge([each.delivery for each in accepted])

    def _may_reply(self, to: str | None) -> bool:
        """Only inboxes: a client must not be able to make the service publish elsewhere."""
        return to is not None and to.startswith(self._reply_prefix) and _SUBJECT.fullmatch(to) is not None

    async def _reject(self, subscription: Subscription, rejected: Sequence[Rejected]) -> None:
        """Store dead letters, then terminate; what can't be stored is delivered again."""
        now = self._clock.now()
        letters = [each.messages(now, self._broker.features.max_message_bytes) for each in rejected]
        results = iter(await self._broker.publish([message for each in letters for message in each]))
        stored: list[Rejected] = []
        for each, messages in zip(rejected, letters, strict=True):
            letter, *told = [next(results).status for _ in messages]
            if letter is PublishStatus.PUBLISHED and ABSOLVED.isdisjoint(told):
                stored.append(each)
        kept = {id(each) for each in stored}
        await self._answer_rejected(stored)
        await subscription.terminate([each.delivery for each in stored])
        for each in rejected:
            if id(each) not in kept:
                log.error("dead letter can't be stored", extra={"command_id": each.command_id})
                await subscription.retry([each.delivery], _patience(each.delivery))

    async def _answer_rejected(self, rejected: Sequence[Rejected]) -> None:
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


async def _wake(accepted: Sequence[_Accepted], outcomes: Sequence[CommandResult]) -> None:
    """Wake for the earliest row that each route wrote."""
    wakes: dict[Callable[[int], Awaitable[None]], int] = {}
    for each, outcome in zip(accepted, outcomes, strict=True):
        if outcome.wake_at is not None:
            wakes[each.route.wake] = min(outcome.wake_at, wakes.get(each.route.wake, outcome.wake_at))
    for wake, at in wakes.items():
        await wake(at)


def _detached(rejection: Rejection) -> Rejection:
    """Drop what a rejection was raised in and from: those keep all that the command was decoded to."""
    rejection.__cause__ = rejection.__context__ = None
    return rejection.with_traceback(None)


def _without_payload(envelope: Envelope | None) -> Envelope | None:
    return envelope and envelope.model_copy(update={"payload": {}})


def _patience(delivery: Delivery) -> timedelta:
    return _RETRY_DELAY * min(delivery.attempt, _LONGEST_RETRY_DELAYS)
