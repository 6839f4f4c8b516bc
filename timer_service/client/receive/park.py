"""Parks events that are given up: the service stores them with the reason, until somebody looks at them."""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from timer_service.client.connection import Connection
from timer_service.client.errors import CommandError, TimerServiceError
from timer_service.client.receive.delivery import Delivery
from timer_service.core.values.address import IDENTIFIER_PATTERN

log = logging.getLogger(__name__)

UNREADABLE = "unreadable"
"""The type of what is parked in place of a message that cannot be parked as an event."""
_SECONDS = 10
_AT_ONCE = 4
"""Each command needs a subscription, and a tenant may have few of them."""
_MOST_TEXT = 256 * 1024
_STORED = {"parked", "unchanged"}
_NOT_AS_IT_IS = {"TOO_LARGE", "INVALID_PAYLOAD", "INVALID_JSON"}


class Parking:
    """Parks the events of a consumer."""

    def __init__(self, connection: Connection, tenant: str, consumer: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._consumer = consumer
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, delivery: Delivery, reason: str, attempts: int) -> bool:
        """Return whether the service has stored the event, now or before."""
        outcome: str | None = None
        try:
            async with self._places:
                for event in _forms(delivery, self._tenant):
                    outcome = await self._send(event, reason.replace("\0", " "), attempts)
                    if outcome is not None:
                        break
        except TimerServiceError as error:
            outcome = str(error)
        if outcome in _STORED:
            return True
        log.error("the event %s cannot be parked (%s); it is tried again later", delivery.event.id, outcome)
        return False

    async def _send(self, event: Mapping[str, Any], reason: str, attempts: int) -> str | None:
        """Return the name of the outcome, or None if the event cannot be parked in this form."""
        fields = {"consumer": self._consumer, "event": event, "reason": reason, "attempts": attempts}
        try:
            return (await self._connection.send("ParkEvent", self._tenant, fields, _SECONDS)).name
        except ValueError:
            return None
        except CommandError as error:
            if error.code in _NOT_AS_IT_IS:
                return None
            raise


def _forms(delivery: Delivery, tenant: str) -> Iterator[Mapping[str, Any]]:
    """Yield the event as it is, then its text, then only its size: the service refuses what it could not send again."""
    raw = delivery.event.raw
    yield raw
    text = json.dumps(raw)
    event_id = delivery.event.id
    if not re.fullmatch(IDENTIFIER_PATTERN, event_id):
        event_id = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    envelope = {"id": event_id, "type": UNREADABLE, "tenantId": tenant}
    if len(text) <= _MOST_TEXT:
        yield {**envelope, "payload": {"text": text}}
    yield {**envelope, "payload": {"omitted": f"the event has {delivery.size} bytes"}}
