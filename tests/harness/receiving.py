"""What a consumer of events talks to: the stream of events as the service has it, and a stand-in that parks events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

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
    """Publishes events as the service does, and parks events as the service does."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.js = connection.jetstream()
        self.parked: list[dict[str, Any]] = []
        """The payloads of the ParkEvent commands."""
        self.refuses: Callable[[Any], bool] = lambda _event: False
        """Whether an event cannot be parked in this form."""
        self.outcome = "parked"
        """The outcome of the next ParkEvent commands."""

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

    async def resubmit(self, consumer: str, name: str) -> None:
        """Publish the DueTimeReached of a timer again, to one consumer."""
        stored = await self.js.get_last_msg("TIMER_EVT", "timer.evt.v1.acme.due-time-reached")
        body = json.loads(stored.data or b"")
        assert body["id"] == f"event-{name}"
        await self.send(f"acme.resubmitted.{consumer}", stored.data or b"")

    async def unacknowledged(self, consumer: str = "acme~orders") -> tuple[int, int]:
        """Return how many events a consumer has not acknowledged, and how many it has not delivered."""
        info = await self.js.consumer_info("TIMER_EVT", consumer)
        return info.num_ack_pending or 0, info.num_pending or 0

    async def until_acknowledged(self, consumer: str = "acme~orders") -> None:
        """Wait until a consumer has acknowledged every event."""
        async with asyncio.timeout(30):
            while await self.unacknowledged(consumer) != (0, 0):
                await asyncio.sleep(0.02)

    async def park(self, message: Msg) -> None:
        """Answer a command ParkEvent."""
        command = json.loads(message.data)
        answer: dict[str, Any] = {"outcome": self.outcome}
        if self.refuses(command["payload"]["event"]):
            answer = {"error": {"code": "INVALID_PAYLOAD", "message": "refused"}}
        else:
            self.parked.append(command["payload"])
        answer["commandId"] = command["id"]
        await self.connection.publish((message.headers or {})["Timer-Reply-To"], json.dumps(answer).encode())


@asynccontextmanager
async def publisher(url: str) -> AsyncIterator[Publisher]:
    """Yield a publisher, after it has created the streams."""
    async with await nats.connect(url, reconnect_time_wait=0.05) as connection:
        found = Publisher(connection)
        await found.js.add_stream(name="TIMER_EVT", subjects=["timer.evt.v1.*.>"], allow_atomic=True)
        await found.js.add_stream(name="TIMER_CMD", subjects=["timer.cmd.v1.*.*"])
        await connection.subscribe("timer.cmd.v1.*.park-event", cb=found.park)
        yield found


async def until(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    """Wait until a condition of this process is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
