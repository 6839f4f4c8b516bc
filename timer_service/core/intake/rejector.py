"""Ends rejected commands: stores the dead letter, publishes the event, replies, and terminates the delivery."""

import logging
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from timer_service.core.intake.attempts import Attempts
from timer_service.core.intake.newest_rejections import NewestRejections
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.replies import inbox_of
from timer_service.core.limits.audit import REJECTED, AuditLog
from timer_service.core.ports.broker import (
    PUBLISHED,
    TRANSIENT,
    Broker,
    Publish,
    PublishResult,
    PublishStatus,
    Reply,
    Subscription,
)
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.health import Health, RecentFailure
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.turns import Turns
from timer_service.core.values.dead_letter import printable
from timer_service.core.values.message import Message
from timer_service.core.values.recent import Recent

log = logging.getLogger(__name__)

_REDELIVERY_DELAY = timedelta(seconds=1)
_LONGEST_REDELIVERY_DELAY = 60 * _REDELIVERY_DELAY
_UNHEALTHY_SECONDS = 5 + _LONGEST_REDELIVERY_DELAY.total_seconds()
_BYTES_AT_ONCE = 16 * 1024
"""Their dead letters take 10 ms at most, also if they consist of tiny headers."""
_MAX_REFUSALS = 10
_LONGEST_ID = 200


class _Storing(NamedTuple):
    """A rejected command, and how the publishing of its dead letter and of its event ended."""

    rejected: Rejected
    letter: PublishResult
    event: PublishResult

    @property
    def is_waiting(self) -> bool:
        """Whether the broker could not store a message for a reason that is not in the message."""
        return self.letter.status in TRANSIENT or self.event.status in TRANSIENT

    @property
    def reason(self) -> str:
        """Why a message was not stored."""
        return self.letter.reason if self.letter.status is not PublishStatus.PUBLISHED else self.event.reason


class Rejector:
    """Ends rejected commands. A command is retried until its messages are stored.

    A tenant that has used its limit of events gets no event. The dead letter has everything.

    If the broker refuses a dead letter ten times even without the command's body and headers, the command is dropped:
    it is terminated without a dead letter, and counted.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        clock: Clock,
        metrics: MetricsPort,
        attempts: Attempts,
        audit: AuditLog,
        newest: NewestRejections,
        command_types: Collection[str],
        reply_prefix: str,
        publish: Publish | None = None,
    ) -> None:
        """`publish` is used in place of `broker.publish`."""
        self._broker = broker
        self._publish_all = publish or broker.publish
        self._clock = clock
        self._metrics = metrics
        self._attempts = attempts
        self._refusals = Attempts()
        self._audit = audit
        self._newest = newest
        self._command_types = command_types
        self._reply_prefix = reply_prefix
        self._failure = RecentFailure(_UNHEALTHY_SECONDS)
        # If one of two messages waits for longer than the broker drops duplicates, the other must not be stored again.
        self._stored: Recent[str, None] = Recent()

    @property
    def health(self) -> Health:
        """Down with the reason while dead letters or their events cannot be stored."""
        return self._failure.health

    async def reject(self, subscription: Subscription, rejected: Sequence[Rejected]) -> None:
        """Store dead letters and events, then terminate the deliveries. Retry those without a stored letter."""
        storing = await self._store(rejected)
        ended, waiting = self._divide(storing)
        for each in ended:
            self._record(each)
        await self._reply([each.rejected for each in ended])
        await subscription.terminate([each.rejected.delivery for each in ended])
        self._forget(ended)
        for each in waiting:
            await self._retry(subscription, each)
        if waiting:
            about = {"count": len(waiting), "reason": waiting[0].reason}
            log.error("dead letters not stored; retrying the commands", extra=about)
            self._failure.record(f"dead letters cannot be stored: {waiting[0].reason}")
        else:
            self._failure.clear()

    async def _store(self, rejected: Sequence[Rejected]) -> list[_Storing]:
        now = self._clock.now()
        turns = Turns(_BYTES_AT_ONCE)
        messages: list[list[Message]] = []
        for each in rejected:
            await turns.take(each.delivery.size)
            messages.append(each.messages(now, self._broker.features.max_message_bytes))
        results = iter(await self._publish([message for each in messages for message in each]))
        stored = [[next(results) for _ in each] for each in messages]
        refused = [n for n, (letter, *_) in enumerate(stored) if letter.status is PublishStatus.REFUSED]
        for n, result in zip(
            refused, await self._publish([rejected[n].smallest_letter() for n in refused]), strict=True
        ):
            stored[n][0] = result
        return [
            _Storing(each, letter, event[0] if event else PUBLISHED)
            for each, (letter, *event) in zip(rejected, stored, strict=True)
        ]

    async def _publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Publish the messages that are not known to be stored."""
        new = [message for message in messages if message.id not in self._stored]
        results = dict(zip((message.id for message in new), await self._publish_all(new) if new else (), strict=True))
        for name, result in results.items():
            if result.status is PublishStatus.PUBLISHED:
                self._stored[name] = None
        return [results.get(message.id, PUBLISHED) for message in messages]

    def _forget(self, ended: Iterable[_Storing]) -> None:
        for each in ended:
            self._attempts.forget(each.rejected.delivery)
            self._refusals.forget(each.rejected.delivery)
            for name in each.rejected.message_ids:
                self._stored.pop(name, None)

    def _divide(self, storing: Sequence[_Storing]) -> tuple[list[_Storing], list[_Storing]]:
        """Return the deliveries that can be terminated, and the others. Count the refusals of dead letters.

        A refused event does not matter: the letter has everything.
        """
        ended: list[_Storing] = []
        waiting: list[_Storing] = []
        for each in storing:
            if each.is_waiting:
                waiting.append(each)
            elif each.letter.status is PublishStatus.PUBLISHED:
                ended.append(each)
            else:
                is_dropped = self._refusals.fail(each.rejected.delivery) >= _MAX_REFUSALS
                (ended if is_dropped else waiting).append(each)
        return ended, waiting

    async def _retry(self, subscription: Subscription, each: _Storing) -> None:
        delivery = each.rejected.delivery
        if each.is_waiting:
            self._attempts.excuse(delivery)
        await subscription.retry([delivery], redelivery_delay(delivery.attempt))

    def _record(self, each: _Storing) -> None:
        rejected = each.rejected
        code = rejected.rejection.code
        known = rejected.envelope is not None and rejected.envelope.type in self._command_types
        command_type = rejected.envelope.type if rejected.envelope and known else "unknown"
        self._metrics.command_handled(command_type, "rejected")
        tenant = rejected.delivery.address.tenant
        about = {
            "command_id": printable(rejected.command_id, _LONGEST_ID),
            "type": command_type,
            "sequence": rejected.delivery.position.sequence,
            "code": code.value,
        }
        self._audit.record(REJECTED, tenant, **about)  # the reason quotes the command
        if each.letter.status is PublishStatus.PUBLISHED:
            self._metrics.dead_letter_stored(code)
            self._newest.add(rejected, self._clock.now())
        else:
            self._metrics.dead_letter_dropped(code)
            log.error(
                "dead letter dropped: the broker refuses it",
                extra={"tenant": printable(tenant), **about, "reason": each.reason},
            )

    async def _reply(self, rejected: Sequence[Rejected]) -> None:
        inboxes = [(each, inbox_of(each.delivery, self._reply_prefix)) for each in rejected]
        if replies := [Reply(to, each.reply()) for each, to in inboxes if to is not None]:
            await self._broker.reply(replies)


def redelivery_delay(attempt: int) -> timedelta:
    """Return the delay before a command is delivered again: one second for each attempt, at most a minute."""
    return min(_REDELIVERY_DELAY * attempt, _LONGEST_REDELIVERY_DELAY)
