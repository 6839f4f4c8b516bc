"""The publisher: messages in windows, each confirmed by the broker."""

import asyncio
import time
from collections.abc import Callable, Sequence

from aiormq import spec
from aiormq.abc import AbstractChannel
from aiormq.exceptions import DeliveryError, PublishError
from pamqp.exceptions import PAMQPException

from timer_service.adapters.rabbitmq.connection import ANSWER_SECONDS, ERRORS, Connection
from timer_service.adapters.rabbitmq.names import Names, write_key
from timer_service.core.ports.broker import PUBLISHED, TRANSIENT, PublishResult, PublishStatus
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind
from timer_service.core.values.message import Message
from timer_service.core.values.parts import split

_CALL_SECONDS = 10
"""After this time a call sends nothing more, so that a slow broker does not outlast the lease of the rows."""
_WINDOW = 500
_WINDOW_BYTES = 1024 * 1024
_LOOK_SECONDS = 0.1
_PERSISTENT = 2
_HEADERS_BYTES = 64 * 1024
"""The broker needs a frame of 128 KiB for all headers and properties."""


class Publisher:
    """Stores messages in their streams."""

    def __init__(
        self, connection: Connection, names: Names, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._names = names
        self._monotonic = monotonic
        self._channels: dict[Kind, AbstractChannel] = {}
        """One of each kind: a missing exchange closes the channel."""

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages. Return one result each, in order."""
        ends_at = self._monotonic() + _CALL_SECONDS
        results: dict[int, PublishResult] = {}
        sendable: dict[Kind, list[int]] = {}
        for index, message in enumerate(messages):
            if (reason := _find_fault(message)) is not None:
                results[index] = PublishResult(PublishStatus.REFUSED, reason)
            else:
                sendable.setdefault(message.address.kind, []).append(index)
        for kind, indexes in sendable.items():
            found = await self._publish_kind(kind, [messages[index] for index in indexes], ends_at)
            results.update(zip(indexes, found, strict=True))
        return [results[index] for index in range(len(messages))]

    async def _publish_kind(self, kind: Kind, messages: Sequence[Message], ends_at: float) -> list[PublishResult]:
        """Publish one window after the other.

        If nothing of a window is stored for a reason that the messages did not cause, the next ones are not sent.
        """
        results: list[PublishResult] = []
        blocked: PublishResult | None = None
        for window in split(messages, _size, max_count=_WINDOW, max_bytes=_WINDOW_BYTES):
            if blocked is None and self._monotonic() > ends_at:
                blocked = _unavailable("not sent: the broker is too slow")
            if blocked is None:
                found = await self._publish_window(kind, window)
                results += found
                blocked = found[0] if all(each.status in TRANSIENT for each in found) else None
            else:
                results += [blocked] * len(window)
        if PUBLISHED in results:  # the broker has room, so a queue of users rejects this message
            return [_refused(each) if each.status is PublishStatus.FULL else each for each in results]
        return results

    async def _publish_window(self, kind: Kind, messages: Sequence[Message]) -> list[PublishResult]:
        """Send messages without waiting for the confirms in between."""
        if self._connection.blocked:
            return [self._full()] * len(messages)
        try:
            channel = await self._channel(kind)
        except ERRORS as error:
            return [_unavailable(_text(error))] * len(messages)
        sent = [asyncio.create_task(self._publish_one(channel, each)) for each in messages]
        try:
            return await self._wait_confirmed(sent)
        finally:
            for task in sent:
                task.cancel()

    async def _wait_confirmed(self, sent: Sequence[asyncio.Task[PublishResult]]) -> list[PublishResult]:
        """Wait for the confirms, until the broker blocks the connection or the time is over."""
        late_at = self._monotonic() + ANSWER_SECONDS
        waiting: set[asyncio.Task[PublishResult]] = {*sent}
        while waiting and not self._connection.blocked and self._monotonic() < late_at:
            _, waiting = await asyncio.wait(waiting, timeout=_LOOK_SECONDS)
        left = self._full() if self._connection.blocked else _unavailable("no confirm in time")
        return [task.result() if task.done() else left for task in sent]

    async def _publish_one(self, channel: AbstractChannel, message: Message) -> PublishResult:
        """Send one message, and return how it ended."""
        exchange = self._names.exchange(message.address.kind)
        properties = spec.Basic.Properties(
            message_id=message.id,
            headers=dict(message.headers),
            delivery_mode=_PERSISTENT,
            content_type="application/json",
        )
        try:
            await channel.basic_publish(
                message.body,
                exchange=exchange,
                routing_key=write_key(message.address),
                properties=properties,
                mandatory=True,
                wait=False,
            )
        except PublishError:
            stream = self._names.stream(message.address.kind)
            return _unavailable(f"exchange {exchange} has no queue: stream {stream} is missing or not bound to it")
        except DeliveryError:
            return PublishResult(PublishStatus.FULL, f"a queue behind exchange {exchange} rejects the message")
        except ERRORS as error:
            return _unavailable(_text(error))
        except (PAMQPException, TypeError, ValueError) as error:
            return PublishResult(PublishStatus.REFUSED, f"cannot be sent: {_text(error)}")
        return PUBLISHED

    async def _channel(self, kind: Kind) -> AbstractChannel:
        """Return the open channel of a kind. Raises one of `ERRORS`."""
        if (channel := self._channels.get(kind)) is None or channel.is_closed:
            channel = self._channels[kind] = await self._connection.channel(confirms=True)
        return channel

    def _full(self) -> PublishResult:
        return PublishResult(PublishStatus.FULL, self._connection.health.reason or "")


def _find_fault(message: Message) -> str | None:
    """Return why a message must not be sent; None if it may be."""
    if len(message.body) > MAX_MESSAGE_BYTES:
        return f"larger than {MAX_MESSAGE_BYTES} bytes"
    if _size(message) - len(message.body) > _HEADERS_BYTES:
        return f"its headers are larger than {_HEADERS_BYTES} bytes"
    return None


def _size(message: Message) -> int:
    """Return how much of a window a message takes."""
    return len(message.body) + sum(len(name) + len(value) for name, value in message.headers.items())


def _refused(result: PublishResult) -> PublishResult:
    return PublishResult(PublishStatus.REFUSED, result.reason)


def _unavailable(reason: str) -> PublishResult:
    return PublishResult(PublishStatus.UNAVAILABLE, reason)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
