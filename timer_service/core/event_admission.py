"""Publishes messages without the events for which their tenants have no allowance. See docs/decisions/0087."""

from collections.abc import Iterable, Sequence
from functools import partial

from timer_service.core.broker import Publish, PublishResult, PublishStatus
from timer_service.core.clock import Clock
from timer_service.core.database import Database
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.event_allowances import LIMIT, EventAllowances, Size
from timer_service.core.message import Kind, Message
from timer_service.core.transactions import in_transaction

_EVENT_BYTES = 600
"""What an event has in the stream in addition to its body, its id and the values of its headers, at most."""
_WITHHELD = PublishResult(PublishStatus.WITHHELD, f"its tenant has used its limit {LIMIT}")


class EventAdmission:
    """Publishes messages. Takes the bytes of each event from the allowance of its tenant; without it, it is withheld.

    After the first event of a tenant that is withheld, all later ones of the call are. Other messages have no limit.
    """

    def __init__(self, publish: Publish, allowances: EventAllowances, database: Database, clock: Clock) -> None:
        self._publish = publish
        self._allowances = allowances
        self._database = database
        self._clock = clock

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages durably; return one result for each, in order."""
        if not self._allowances.has_limits:
            return await self._publish(messages)
        if self._allowances.spend(_bytes_of_tenants(messages), self._clock.now()):
            return await self._publish_admitted(messages)
        withheld = await self._find_withheld([message for message in messages if message.address.kind is Kind.EVENT])
        admitted = [message for message in messages if message.id not in withheld]
        results = iter(await self._publish_admitted(admitted) if admitted else ())
        return [_WITHHELD if message.id in withheld else next(results) for message in messages]

    async def _publish_admitted(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Publish messages whose bytes were taken. Give back what was not stored."""
        results = await self._publish(messages)
        failed = [
            message
            for message, result in zip(messages, results, strict=True)
            if result.status is not PublishStatus.PUBLISHED
        ]
        self._allowances.give_back(_bytes_of_tenants(failed))
        return results

    async def _find_withheld(self, events: Sequence[Message]) -> set[str]:
        """Return the ids of the events that must wait. While the database is away, no other tenant begins to wait."""
        now = self._clock.now()
        waiting = self._allowances.waiting(now)
        asking = [event for event in events if event.address.tenant not in waiting]
        withheld = {event.id for event in events if event.address.tenant in waiting}
        if not asking:
            return withheld
        admit = partial(self._allowances.admit, sizes=[_size(event) for event in asking], now=now)
        try:
            async with self._allowances.taking:
                admitted = await in_transaction(self._database, admit)
        except DatabaseUnavailableError:
            return withheld
        return withheld | {event.id for event, is_admitted in zip(asking, admitted, strict=True) if not is_admitted}


def _bytes_of_tenants(messages: Iterable[Message]) -> dict[str, int]:
    """Return the bytes of the events of each tenant. Written for speed: this takes 0.2 µs of the 20 µs of an event."""
    sizes: dict[str, int] = {}
    for (kind, tenant, _), message_id, body, headers in messages:
        if kind is Kind.EVENT:
            size = _EVENT_BYTES + len(body) + len(message_id.encode())
            if headers:
                size += sum(map(len, headers.values()))
            sizes[tenant] = sizes.get(tenant, 0) + size
    return sizes


def _size(event: Message) -> Size:
    ((tenant, amount),) = _bytes_of_tenants([event]).items()
    return Size(tenant, amount)
