"""What a consumer of events reads: the events as the service stores them, or those of the service."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import nats
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPError, ChannelInvalidStateError
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from tests.harness.processes import NatsServer
from tests.harness.rabbitmq import RabbitServer
from tests.harness.redis import RedisServer
from timer_service.client.redis.pipe import Pipe
from timer_service.core.values.address import Address, Kind, kebab
from timer_service.redis_client import RedisClient, new_client

AT = "2026-11-21T09:00:00.000Z"
_ROOM = 3
"""How many events a consumer that handles one at a time holds at most."""
_PAYLOADS: dict[str, dict[str, Any]] = {
    "DueTimeReached": {"dueAt": AT, "reachedAt": AT},
    "TimerExpired": {"dueAt": AT, "expiredAt": AT},
    "ScheduleFired": {"slotAt": AT, "firedAt": AT, "cause": "slot"},
    "JobReady": {"readyAt": AT, "upstreamJobOutputs": {}},
    "work.signal.fired": {"signalId": "s", "firingId": "f", "dedupeKey": "d", "firedAt": AT},
    "RunCompleted": {"status": "success", "counts": {}},
}


class EventPublisher(ABC):
    """Publishes events as the service does, and knows what consumers of the tenant acme have left."""

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
        if topic is not None:
            body["topic"] = topic
        await self.store(Address(Kind.EVENT, tenant, kebab(message_type), topic), json.dumps(body).encode())

    @abstractmethod
    async def store(self, address: Address, body: bytes) -> None:
        """Store an event."""

    @abstractmethod
    async def unacknowledged(self, consumer: str = "acme~orders") -> tuple[int, int]:
        """Return how many events a consumer has not acknowledged, and how many it has not delivered."""

    @abstractmethod
    async def wanted(self) -> set[str]:
        """Return which events the consumer orders wants: a type, with `.` and a topic if it can have one."""

    @abstractmethod
    async def is_waiting(self) -> bool:
        """Return whether a process of the consumer orders has room for events."""

    @abstractmethod
    async def exists(self) -> bool:
        """Return whether the consumer orders exists."""

    @abstractmethod
    async def delete_consumer(self) -> None:
        """Delete the consumer orders."""

    @abstractmethod
    async def replace_stream(self) -> None:
        """Delete all events and consumers."""

    async def until_acknowledged(self, consumer: str = "acme~orders") -> None:
        """Wait until a consumer has acknowledged every event."""
        await self.until_left(0, consumer)

    async def until_left(self, count: int, consumer: str = "acme~orders") -> None:
        """Wait until all events were delivered, and so many are not acknowledged. A broker may say it late."""
        async with asyncio.timeout(30):
            while await self.unacknowledged(consumer) != (count, 0):
                await asyncio.sleep(0.02)


class Publisher(EventPublisher):
    """Publishes events to NATS."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.js = connection.jetstream()

    async def store(self, address: Address, body: bytes) -> None:
        suffix = "" if address.topic is None else f".{address.topic}"
        await self.send(f"{address.tenant}.{address.message}{suffix}", body)

    async def send(self, address: str, body: bytes) -> None:
        """Publish any message to the stream of events."""
        await self.js.publish(f"timer.evt.v1.{address}", body)

    async def unacknowledged(self, consumer: str = "acme~orders") -> tuple[int, int]:
        info = await self.js.consumer_info("TIMER_EVT", consumer)
        undelivered = info.num_pending or 0
        if not undelivered and info.delivered is not None:  # the server counts a message after it has confirmed it
            filters = info.config.filter_subjects or [info.config.filter_subject or ">"]
            newest = max([await self._newest(each) for each in filters])
            undelivered = int(newest > info.delivered.stream_seq)
        return info.num_ack_pending or 0, undelivered

    async def _newest(self, subject: str) -> int:
        """Return the sequence of the newest event with a subject; 0 if there is none."""
        try:
            return (await self.js.get_last_msg("TIMER_EVT", subject)).seq or 0
        except NotFoundError:
            return 0

    async def wanted(self) -> set[str]:
        info = await self.js.consumer_info("TIMER_EVT", "acme~orders")
        return {each.removeprefix("timer.evt.v1.acme.") for each in info.config.filter_subjects or []}

    async def is_waiting(self) -> bool:
        return bool((await self.js.consumer_info("TIMER_EVT", "acme~orders")).num_waiting)

    async def exists(self) -> bool:
        return bool(await self.js.consumers_info("TIMER_EVT"))

    async def delete_consumer(self) -> None:
        await self.js.delete_consumer("TIMER_EVT", "acme~orders")

    async def replace_stream(self) -> None:
        config = (await self.js.stream_info("TIMER_EVT")).config
        await self.js.delete_stream("TIMER_EVT")
        await self.js.add_stream(config)


class RedisPublisher(EventPublisher):
    """Publishes events to Redis."""

    def __init__(self, client: RedisClient, *, room: int) -> None:
        """`room`: how many events a process of the consumer orders holds at most."""
        self.client = client
        self._pipe = Pipe(client)
        self._room = room

    async def store(self, address: Address, body: bytes) -> None:
        topic = {} if address.topic is None else {"topic": address.topic}
        fields: Any = {"type": address.message, **topic, "body": body}
        await self._pipe.send(lambda pipeline: pipeline.xadd(f"timer:evt:{address.tenant}", fields))

    async def unacknowledged(self, consumer: str = "acme~orders") -> tuple[int, int]:
        tenant, _, name = consumer.partition("~")
        for group in await self.client.xinfo_groups(f"timer:evt:{tenant}"):
            if group["name"] == name.encode():
                later = await self.client.xrange(f"timer:evt:{tenant}", b"(" + group["last-delivered-id"])
                return group["pending"], len(later)
        raise LookupError(consumer)

    async def wanted(self) -> set[str]:
        names = [each["name"].decode() for each in await self.client.xinfo_consumers("timer:evt:acme", "orders")]
        return {each.removeprefix("wants ") for each in names if each.startswith("wants ")}

    async def is_waiting(self) -> bool:
        return (await self.unacknowledged())[0] < self._room

    async def exists(self) -> bool:
        return bool(await self.client.exists("timer:evt:acme"))

    async def delete_consumer(self) -> None:
        await self.client.xgroup_destroy("timer:evt:acme", "orders")

    async def replace_stream(self) -> None:
        await self.client.delete("timer:evt:acme")


class RabbitPublisher(EventPublisher):
    """Publishes events to RabbitMQ, and asks its command line about queues."""

    def __init__(self, server: RabbitServer, channel: AbstractChannel, *, room: int) -> None:
        """`room`: see `RedisPublisher`."""
        self._server = server
        self._channel = channel
        self._room = room

    async def store(self, address: Address, body: bytes) -> None:
        key = ".".join(filter(None, address[1:]))
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        while True:
            try:
                exchange = await self._channel.get_exchange("timer.evt", ensure=False)
                await exchange.publish(message, key, timeout=5)
            except (AMQPError, ChannelInvalidStateError, ConnectionError, TimeoutError):  # it is restarting
                await asyncio.sleep(0.1)
            else:
                return

    async def unacknowledged(self, consumer: str = "acme~orders") -> tuple[int, int]:
        found = await self._list("list_queues", "name", "messages_unacknowledged", "messages_ready")
        return next((int(taken), int(ready)) for name, taken, ready in found if name == consumer.replace("~", "."))

    async def wanted(self) -> set[str]:
        return {key.removeprefix("acme.") for queue, key in await self._bindings() if queue == "acme.orders"}

    async def is_waiting(self) -> bool:
        """Return whether a process has taken less than it can handle and wait for. RabbitMQ gives it more."""
        return (await self.unacknowledged())[0] < self._room

    async def exists(self) -> bool:
        return ["acme.orders"] in await self._list("list_consumers", "queue_name")

    async def delete_consumer(self) -> None:
        await self._channel.queue_delete("acme.orders")

    async def replace_stream(self) -> None:
        await self._channel.queue_delete("timer.evt.log")

    async def clear(self) -> None:
        """Delete the exchange and the queues bound to it, on a server that other tests use too."""
        for name in {queue for queue, _ in await self._bindings()}:
            await self._channel.queue_delete(name)
        await self._channel.exchange_delete("timer.evt")

    async def _bindings(self) -> list[tuple[str, str]]:
        """Return the queues that get events, and the keys."""
        found = await self._list("list_bindings", "source_name", "destination_name", "routing_key")
        return [(queue, key) for source, queue, key in found if source == "timer.evt"]

    async def _list(self, *arguments: str) -> list[list[str]]:
        """Return the rows of a list of rabbitmqctl, without the names of the columns."""
        listed = await asyncio.to_thread(self._server.ctl, *arguments)
        return [each.split("\t") for each in listed.splitlines() if each.split("\t") != [*arguments[1:]]]


@asynccontextmanager
async def publisher(url: str) -> AsyncIterator[Publisher]:
    """Yield a publisher, after it has created the stream. For tests without the service."""
    async with await nats.connect(url, reconnect_time_wait=0.05) as connection:
        found = Publisher(connection)
        await found.js.add_stream(name="TIMER_EVT", subjects=["timer.evt.v1.*.>"], allow_atomic=True)
        yield found


@asynccontextmanager
async def event_publisher(
    server: NatsServer | RedisServer | RabbitServer, *, is_stream_there: bool = False
) -> AsyncIterator[EventPublisher]:
    """Yield a publisher of any broker. `is_stream_there`: the service has created the stream."""
    url = server.url
    if isinstance(server, RabbitServer):
        async with await aio_pika.connect_robust(url, reconnect_interval=0.2) as rabbit:
            channel = await rabbit.channel()
            await channel.declare_exchange("timer.evt", "topic", durable=True)
            yield RabbitPublisher(server, channel, room=_ROOM)
    elif url.startswith("nats") and is_stream_there:
        async with await nats.connect(url) as connection:
            yield Publisher(connection)
    elif url.startswith("nats"):
        async with publisher(url) as found:
            yield found
    else:
        async with new_client(url, "publisher") as client:
            yield RedisPublisher(client, room=_ROOM)
