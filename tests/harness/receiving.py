"""What a consumer of events reads: the stream of events as the service has it, or that of the service."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client

from timer_service.core.values.address import kebab

AT = "2026-11-21T09:00:00.000Z"
_PAYLOADS: dict[str, dict[str, Any]] = {
    "DueTimeReached": {"dueAt": AT, "reachedAt": AT},
    "TimerExpired": {"dueAt": AT, "expiredAt": AT},
    "ScheduleFired": {"slotAt": AT, "firedAt": AT, "cause": "slot"},
    "JobReady": {"readyAt": AT, "upstreamJobOutputs": {}},
    "work.signal.fired": {"signalId": "s", "firingId": "f", "dedupeKey": "d", "firedAt": AT},
    "RunCompleted": {"status": "success", "counts": {}},
}


class Publisher:
    """Publishes events as the service does."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.js = connection.jetstream()

    async def fire(self, name: str, data: Any = None, *, topic: str | None = None, tenant: str = "acme") -> None:
        """Publish a DueTimeReached of the timer `name`, whose id is `event-<name>`."""
        await self.publish("DueTimeReached", topic, tenant, name, serviceCallId=name, data=data)

    async def publish(
        self, message_type: str, topic: str | None = None, tenant: str = "acme", name: str = "1", **payload: Any
    ) -> None:
        """Publish an event."""
        body: dict[str, Any] = {
            "id": f"event-{name}",
            "type": message_type,
            "tenantId": tenant,
            "timestampMs": 1_795_240_000_000,
            "payload": {"tenantId": tenant, **_PAYLOADS[message_type], **payload},
        }
        suffix = "" if topic is None else f".{topic}"
        if topic is not None:
            body["topic"] = topic
        await self.send(f"{tenant}.{kebab(message_type)}{suffix}", json.dumps(body).encode())

    async def send(self, address: str, body: bytes) -> None:
        """Publish any message to the stream of events."""
        await self.js.publish(f"timer.evt.v1.{address}", body)

    async def unacknowledged(self, consumer: str = "acme~orders") -> tuple[int, int]:
        """Return how many events a consumer has not acknowledged, and how many it has not delivered."""
        info = await self.js.consumer_info("TIMER_EVT", consumer)
        return info.num_ack_pending or 0, info.num_pending or 0

    async def until_acknowledged(self, consumer: str = "acme~orders") -> None:
        """Wait until a consumer has acknowledged every event."""
        async with asyncio.timeout(30):
            while await self.unacknowledged(consumer) != (0, 0):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def publisher(url: str) -> AsyncIterator[Publisher]:
    """Yield a publisher, after it has created the stream. For tests without the service."""
    async with await nats.connect(url, reconnect_time_wait=0.05) as connection:
        found = Publisher(connection)
        await found.js.add_stream(name="TIMER_EVT", subjects=["timer.evt.v1.*.>"], allow_atomic=True)
        yield found
