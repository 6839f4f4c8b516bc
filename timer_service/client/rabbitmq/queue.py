"""The deliveries of a durable consumer, which is a quorum queue `<tenant>.<name>` bound to the exchange of the events.

The queue counts how often each event was given back. An event stays with its process until it is settled, or the
process or its connection ends; `ack_wait` has no meaning. After the `consumer_timeout` of the server (30 min) it closes
the channel, and the events come again. An event that is tried again later waits in its process.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import aiormq
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from timer_service.cancellation import own_cancellation
from timer_service.client.errors import NoAnswerError
from timer_service.client.link import Link
from timer_service.client.rabbitmq.channels import close_channel, number, on_closed
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Consumer, covers, subject_parts
from timer_service.client.receive.reading import read_delivered
from timer_service.rabbit_client import ERRORS, reason_of

log = logging.getLogger(__name__)

_UNSETTLED = 250
"""How many events a process takes at most. Those that wait for their next attempt count, and must block no others."""
_AGAIN_SECONDS = 0.2
_PASSED_ON = 5
"""How often an event without a handler here is given back at once. Later it counts as failed, so it is parked."""
_PASS_SECONDS = 1.0
_CLOSED = "the connection to the broker is closed"
_ARGUMENTS: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000}
"""Those of a queue. RabbitMQ 4 drops an event after 20 deliveries without a limit, and 3.10 at once with none (-1)."""


class _Receipt:
    """The delivery of an event."""

    __slots__ = ("channel", "is_settled", "tag")

    def __init__(self, channel: aiormq.Channel, tag: int) -> None:
        self.channel = channel
        self.tag = tag
        self.is_settled = False

    async def ack(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            with suppress(*ERRORS), own_cancellation():  # then the event comes again
                await self.channel.basic_ack(self.tag)

    async def retry(self, delay: timedelta) -> None:
        if not self.is_settled:
            self.is_settled = True
            asyncio.get_running_loop().call_later(delay.total_seconds(), self._give_back)

    async def renew(self) -> None:
        """Do nothing: the deadline of the server cannot be moved."""

    def _give_back(self) -> None:
        giving = asyncio.ensure_future(self.channel.basic_nack(self.tag, requeue=True))
        giving.add_done_callback(lambda done: done.cancelled() or done.exception())


class QueueSubscription:
    """See `Subscription`. `ahead` is how many deliveries wait here at most until `next` takes them."""

    def __init__(
        self,
        link: Link,
        new_channel: Callable[[], Awaitable[aiormq.Channel]],
        exchange: str,
        *,
        consumer: Consumer,
        ahead: int,
    ) -> None:
        self._link = link
        self._new_channel = new_channel
        self._exchange = exchange
        self._consumer = consumer
        self._prefetch = max(ahead, _UNSETTLED)
        self._queue = f"{consumer.tenant}.{consumer.name}"
        self._patterns = [tuple(each.split(".")) for each in subject_parts(consumer)]
        self._waiting: deque[tuple[_Receipt, Delivery]] = deque()
        self._arrived, self._ended, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._channel: aiormq.Channel | None = None
        self._tag = ""
        self._is_prepared = False
        """Whether the operator has created and bound the queue, and this login may not change it."""
        self._keeping: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"the queue {self._queue}"

    @property
    def addresses(self) -> Sequence[str]:
        """See `Subscription.addresses`."""
        return [f"{self._exchange} {key}" for key in self._keys()]

    async def open(self) -> None:
        """See `Subscription.open`."""
        if self._consumer.stream is not None:
            raise NoAnswerError("stream must be left out: a consumer has a queue of its own on RabbitMQ")
        if self._consumer.from_start:
            raise NoAnswerError(f"from_start must be left out: read the stream {self._exchange}.log instead")
        try:
            await self._link.run(self._begin())
        except ERRORS as error:
            if self._link.is_closed:
                raise NoAnswerError(_CLOSED) from error
            raise NoAnswerError(f"{self} cannot be used: {reason_of(error)}") from error
        self._link.on_lost.append(self._arrived.set)
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """See `Subscription.stop`."""
        self._stopping.set()
        self._ended.set()
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
        if self._channel is not None and not self._channel.is_closed:
            with suppress(*ERRORS), own_cancellation():
                await self._channel.basic_cancel(self._tag)
        while (delivery := self.next_waiting()) is not None:
            await delivery.retry()

    async def close(self) -> None:
        """See `Subscription.close`. What waits for its next attempt goes back to the queue with the channel."""
        await self.stop()
        if self._arrived.set in self._link.on_lost:
            self._link.on_lost.remove(self._arrived.set)
        if self._channel is not None:
            await close_channel(self._channel)

    async def next(self) -> Delivery:
        """See `Subscription.next`."""
        while not self._link.is_closed:
            delivery = self.next_waiting()
            if delivery is not None:
                return delivery
            self._arrived.clear()
            await self._arrived.wait()
        raise NoAnswerError(_CLOSED)

    def next_waiting(self) -> Delivery | None:
        """See `Subscription.next_waiting`."""
        while self._waiting:
            receipt, delivery = self._waiting.popleft()
            if not receipt.channel.is_closed:  # otherwise the event comes again
                return delivery
        return None

    def _keys(self) -> list[str]:
        return [".".join([self._consumer.tenant, *each]) for each in self._patterns]

    async def _begin(self) -> None:
        """Find or create the queue, bind it to what this program wants, and receive."""
        self._channel = await self._declare()
        self._ended.clear()
        on_closed(self._channel, self._ended.set)
        self._channel.on_consumer_cancel_callbacks.add(self._cancelled)
        await self._channel.basic_qos(prefetch_count=self._prefetch)
        self._tag = (await self._channel.basic_consume(self._queue, self._receive)).consumer_tag or ""

    async def _declare(self) -> aiormq.Channel:
        """Return a channel to the queue. A login that may not create it uses the one that the operator has made."""
        channel = await self._new_channel()
        refusal: Exception | None = None
        try:
            await channel.queue_declare(self._queue, durable=True, arguments=_ARGUMENTS)
        except (ChannelAccessRefused, ChannelPreconditionFailed) as error:  # each of them closes the channel
            if "'x-queue-type'" in str(error):  # no other one counts the attempts
                raise NoAnswerError(f"{self} must be a quorum queue: delete it, or use another name") from error
            refusal, channel = error, await self._new_channel()
            try:
                await channel.queue_declare(self._queue, passive=True)
            except (ChannelAccessRefused, ChannelNotFoundEntity):
                raise NoAnswerError(
                    f"{self} cannot be created ({reason_of(error)}). The operator must create it as a quorum queue, "
                    f"bound to {' and '.join(self.addresses)}"
                ) from error
        try:
            for key in self._keys():
                await channel.queue_bind(self._queue, self._exchange, key)
        except ChannelNotFoundEntity as error:
            raise NoAnswerError(f"the exchange {self._exchange} is missing; was timer-service started?") from error
        except ChannelAccessRefused as error:
            if refusal is None:
                raise NoAnswerError(
                    f"{self} cannot be bound ({reason_of(error)}). This login needs the permission to bind it to "
                    f"{' and '.join(self.addresses)}, or none to create queues: then the operator prepares it"
                ) from error
            self._is_prepared, channel = True, await self._new_channel()
        return channel

    async def _cancelled(self, _frame: object) -> None:
        """Begin again, because the queue was deleted."""
        log.warning("%s was deleted; it is created again", self)
        self._ended.set()

    async def _keep(self) -> None:
        """Begin again whenever the channel has ended, until the stop."""
        has_failed = False
        while True:
            await self._ended.wait()
            if self._stopping.is_set() or self._link.is_closed:
                return
            if self._channel is not None:
                await close_channel(self._channel)
            try:
                with own_cancellation():
                    await self._begin()
            except (*ERRORS, NoAnswerError) as error:
                if self._link.problem is None and not has_failed:
                    log.warning("%s: %s; trying again", self, reason_of(error))
                    has_failed = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_SECONDS):
                        await self._stopping.wait()
                self._ended.set()
            else:
                log.info("%s: receiving again", self)
                has_failed = False

    async def _receive(self, message: DeliveredMessage) -> None:
        """Let a delivery wait for `next`. Drop an event for which no program that runs has a handler."""
        receipt = _Receipt(message.channel, message.delivery_tag or 0)  # type: ignore[arg-type]
        properties = message.header.properties
        attempt = number((properties.headers or {}).get("x-delivery-count")) + 1
        address = tuple((message.routing_key or "").split(".")[1:])
        if not any(covers(each, address) for each in self._patterns):
            if not await self._is_for_others(receipt):
                await receipt.ack()
                return
            if attempt <= _PASSED_ON:
                await receipt.retry(timedelta(seconds=_PASS_SECONDS * random.random()))  # noqa: S311 - no secret
                return
        stored_at = properties.timestamp or datetime.now(UTC)
        event, problem = read_delivered(message.body, properties.message_id, stored_at, self._consumer.tenant)
        delivery = Delivery(event, attempt, receipt, size=len(message.body), problem=problem)
        self._waiting.append((receipt, delivery))
        self._arrived.set()

    async def _is_for_others(self, receipt: _Receipt) -> bool:
        """Return whether an event without a handler here may have one in another process.

        A queue of the operator may be bound to all events, so there it has a handler in all processes or in none.
        """
        if self._is_prepared:
            return False
        try:
            with own_cancellation():
                found = await receipt.channel.queue_declare(self._queue, passive=True)
        except ERRORS:
            return True  # the channel has ended, so the event comes again
        return (found.consumer_count or 0) > 1
