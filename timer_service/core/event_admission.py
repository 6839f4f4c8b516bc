"""Publishes messages without the events for which their tenants have no allowance."""

from collections.abc import Sequence
from functools import partial

from timer_service.core.broker import PUBLISHED, Publish, PublishResult, PublishStatus
from timer_service.core.clock import Clock
from timer_service.core.database import Database
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.event_allowances import EVENT_BYTES, EventAllowances, Size
from timer_service.core.message import Kind, Message
from timer_service.core.transactions import in_transaction


class EventAdmission:
    """Publishes messages that have no rows, which could wait. An event without an allowance is left out.

    Its result is PUBLISHED, because nothing must wait for it.
    """

    def __init__(self, publish: Publish, allowances: EventAllowances, database: Database, clock: Clock) -> None:
        self._publish = publish
        self._allowances = allowances
        self._database = database
        self._clock = clock

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages durably; return one result for each, in order."""
        events = [message for message in messages if message.address.kind is Kind.EVENT]
        if not self._allowances.has_limits or not events:
            return await self._publish(messages)
        excess = await self._find_excess(events)
        kept = [message for message in messages if message.id not in excess]
        results = await self._publish(kept) if kept else ()
        by_id = {message.id: result for message, result in zip(kept, results, strict=True)}
        failed = [event for event in events if by_id.get(event.id, PUBLISHED).status is not PublishStatus.PUBLISHED]
        self._allowances.give_back(map(_size, failed))
        return [by_id.get(message.id, PUBLISHED) for message in messages]

    async def _find_excess(self, events: Sequence[Message]) -> set[str]:
        """Return the ids of the events that must not be published. While the database is away, there are none."""
        now = self._clock.now()
        waiting = self._allowances.waiting(now)
        asking = [event for event in events if event.address.tenant not in waiting]
        excess = {event.id for event in events if event.address.tenant in waiting}
        if not asking:
            return excess
        admit = partial(self._allowances.admit, sizes=[_size(event) for event in asking], now=now)
        try:
            admitted = await in_transaction(self._database, admit)
        except DatabaseUnavailableError:
            return excess
        return excess | {event.id for event, is_admitted in zip(asking, admitted, strict=True) if not is_admitted}


def _size(event: Message) -> Size:
    return Size(event.address.tenant, len(event.body) + EVENT_BYTES)
