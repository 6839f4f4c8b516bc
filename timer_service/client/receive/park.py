"""Parks events that are given up: the service stores them with the reason, until somebody looks at them."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from timer_service.client.connection import Connection
from timer_service.client.errors import CommandError, TimerServiceError
from timer_service.client.receive.delivery import Delivery

log = logging.getLogger(__name__)

_SECONDS = 10
_AT_ONCE = 4
"""Each command needs a subscription, and a tenant may have few of them."""
_STORED = {"parked", "unchanged"}


class Parking:
    """Parks the events of a consumer."""

    def __init__(self, connection: Connection, tenant: str, consumer: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._consumer = consumer
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, delivery: Delivery, reason: str, attempts: int) -> bool:
        """Return whether the service has stored the event, now or before."""
        raw = delivery.event.raw
        try:
            async with self._places:
                outcome = await self._send(raw, reason, attempts)
                if outcome is None:  # the command is larger than a message may be
                    payload = {"omitted": f"the event has {delivery.size} bytes, too many to be parked"}
                    outcome = await self._send({**raw, "payload": payload}, reason, attempts)
        except TimerServiceError as error:
            outcome = str(error)
        if outcome in _STORED:
            return True
        log.error("the event %s cannot be parked (%s); it is tried again later", delivery.event.id, outcome)
        return False

    async def _send(self, event: Mapping[str, Any], reason: str, attempts: int) -> str | None:
        """Return the name of the outcome, or None if the command is too large."""
        fields = {"consumer": self._consumer, "event": event, "reason": reason, "attempts": attempts}
        try:
            return (await self._connection.send("ParkEvent", self._tenant, fields, _SECONDS)).name
        except ValueError:
            return None
        except CommandError as error:
            if error.code in {"TOO_LARGE", "INVALID_PAYLOAD"} and "omitted" not in event["payload"]:
                return None
            raise
