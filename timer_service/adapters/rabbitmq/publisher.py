"""The publisher: messages in windows, each message confirmed by the broker.

The frames of a window are written at once. `Channel.basic_publish` of the driver has a task, a lock and a wait for the
socket for each message, and takes three times as long.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import lru_cache

from aiormq import Channel, spec
from aiormq.abc import ChannelFrame
from aiormq.exceptions import DeliveryError, PublishError
from pamqp.body import ContentBody
from pamqp.exceptions import PAMQPException
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from timer_service.adapters.rabbitmq.connection import Connection
from timer_service.adapters.rabbitmq.names import Names, write_key
from timer_service.core.ports.broker import PUBLISHED, TRANSIENT, PublishResult, PublishStatus
from timer_service.core.ports.turns import Turns
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Address, Kind
from timer_service.core.values.message import Message
from timer_service.core.values.parts import split
from timer_service.rabbit_client import ANSWER_SECONDS, ERRORS, reason_of

Confirm = asyncio.Future[object]

_CALL_SECONDS = 10
"""After this time a call sends nothing more, so that a slow broker does not outlast the lease of the rows."""
_FEW = 100
"""A call with so few messages does not wait for other calls."""
_WINDOW = 500
_WINDOW_BYTES = 1024 * 1024
_BYTES_PER_TURN = 64 * 1024
_LOOK_SECONDS = 0.1
_PERSISTENT = 2


class Publisher:
    """Stores messages in their streams."""

    def __init__(
        self, connection: Connection, names: Names, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._names = names
        self._monotonic = monotonic
        self._channels: dict[Kind, Channel] = {}
        """One of each kind: a missing exchange closes the channel."""
        self._opening = asyncio.Lock()
        self._sending = asyncio.Lock()
        """Held by a call with many messages. If they overlapped, each would be half stored when a process is killed."""

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Store messages. Return one result each, in order."""
        ends_at = self._monotonic() + _CALL_SECONDS
        results: dict[int, PublishResult] = {}
        for kind in {message.address.kind for message in messages}:
            of_kind = {n: message for n, message in enumerate(messages) if message.address.kind is kind}
            results |= await self._publish_kind(kind, of_kind, ends_at)
        return [results[n] for n in range(len(messages))]

    async def _publish_kind(
        self, kind: Kind, messages: Mapping[int, Message], ends_at: float
    ) -> Mapping[int, PublishResult]:
        """Publish one window after the other.

        If nothing of a window is stored for a reason that the messages did not cause, the next ones are not sent.
        """
        try:
            async with self._opening:
                if (channel := self._channels.get(kind)) is None or channel.is_closed:
                    channel = self._channels[kind] = await self._connection.channel(confirms=True)
        except ERRORS as error:
            return dict.fromkeys(messages, _unavailable(reason_of(error)))
        frames: dict[int, bytes] = {}
        results: dict[int, PublishResult] = {}
        turns = Turns(_BYTES_PER_TURN)
        for n, message in messages.items():
            await turns.take(len(message.body))
            try:
                frames[n] = _encode(message, self._names.exchange(kind), channel)
            except (PAMQPException, TypeError, ValueError) as error:
                results[n] = _refused(f"cannot be sent: {reason_of(error)}")
        blocked: PublishResult | None = None
        async with self._sending if len(messages) > _FEW else nullcontext():
            for window in split(frames, lambda n: len(frames[n]), max_count=_WINDOW, max_bytes=_WINDOW_BYTES):
                if blocked is None and self._monotonic() > ends_at:
                    blocked = _unavailable("not sent: the broker is too slow")
                if blocked is None:
                    ids = [messages[n].id for n in window]
                    found = await self._publish_window(kind, channel, ids, b"".join(frames[n] for n in window))
                    results.update(zip(window, found, strict=True))
                    blocked = found[0] if all(each.status in TRANSIENT for each in found) else None
                else:
                    results.update(dict.fromkeys(window, blocked))
        if PUBLISHED in results.values():  # the broker has room, so a queue of users rejects this message
            full = {n: _refused(each.reason) for n, each in results.items() if each.status is PublishStatus.FULL}
            results |= full
        return results

    async def _publish_window(
        self, kind: Kind, channel: Channel, ids: Sequence[str], frames: bytes
    ) -> list[PublishResult]:
        """Send messages in one write, and wait for the confirms."""
        if self._connection.blocked:
            return [self._full()] * len(ids)
        confirms: list[Confirm] = []
        try:
            async with channel.lock, asyncio.timeout(ANSWER_SECONDS):
                await channel.write_queue.put(ChannelFrame(frames, should_close=False))
                for message_id in ids:
                    channel.delivery_tag += 1
                    channel.confirmations[channel.delivery_tag] = confirm = channel.create_future()
                    channel.message_id_delivery_tag[message_id] = channel.delivery_tag
                    confirms.append(confirm)
        except ERRORS as error:
            return [_unavailable(reason_of(error))] * len(ids)
        try:
            await self._wait(confirms)
        finally:
            for message_id, confirm in zip(ids, confirms, strict=True):
                channel.message_id_delivery_tag.pop(message_id, None)
                confirm.cancel()
        results = [self._result(kind, confirm) for confirm in confirms]
        # The driver knows a message that no queue gets by its id alone, and several dead letters can have the same one.
        lost = {n: each for n, each in zip(ids, results, strict=True) if each.status in TRANSIENT}
        return [lost.get(n, each) for n, each in zip(ids, results, strict=True)]

    async def _wait(self, confirms: Sequence[Confirm]) -> None:
        """Wait for the confirms, until the broker blocks the connection or the time is over."""
        late_at = self._monotonic() + ANSWER_SECONDS
        waiting = {*confirms}
        while waiting and not self._connection.blocked and self._monotonic() < late_at:
            _, waiting = await asyncio.wait(waiting, timeout=_LOOK_SECONDS)

    def _result(self, kind: Kind, confirm: Confirm) -> PublishResult:
        """Return how publishing one message ended."""
        if confirm.cancelled():
            return self._full() if self._connection.blocked else _unavailable("no confirm in time")
        exchange, stream = self._names.exchange(kind), self._names.stream(kind)
        match confirm.exception():
            case None:
                return PUBLISHED
            case PublishError():
                return _unavailable(f"exchange {exchange} has no queue: stream {stream} is missing or not bound to it")
            case DeliveryError():
                return PublishResult(PublishStatus.FULL, f"a queue behind exchange {exchange} rejects the message")
            case error:
                return _unavailable(reason_of(error))

    def _full(self) -> PublishResult:
        return PublishResult(PublishStatus.FULL, self._connection.health.reason or "")


def _encode(message: Message, exchange: str, channel: Channel) -> bytes:
    """Return the frames of a message. Raises one of the errors of the driver, or ValueError if it is too large."""
    if len(message.body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"it is larger than {MAX_MESSAGE_BYTES} bytes")
    properties = spec.Basic.Properties(
        message_id=message.id,
        headers=dict(message.headers),
        delivery_mode=_PERSISTENT,
        content_type="application/json",
        timestamp=datetime.now(UTC),
    )
    most, number = channel.max_content_size, channel.number
    header = marshal(ContentHeader(body_size=len(message.body), properties=properties), number)
    if len(header) > most + channel.CONTENT_FRAME_SIZE:
        raise ValueError(f"its headers are larger than {most} bytes")
    body = (ContentBody(message.body[at : at + most]) for at in range(0, len(message.body), most))
    return b"".join([_begin(message.address, exchange, number), header, *(marshal(each, number) for each in body)])


@lru_cache(maxsize=1024)
def _begin(address: Address, exchange: str, channel: int) -> bytes:
    """Return the first frame of a message, which says where it goes."""
    return marshal(spec.Basic.Publish(exchange=exchange, routing_key=write_key(address), mandatory=True), channel)


def _refused(reason: str) -> PublishResult:
    return PublishResult(PublishStatus.REFUSED, reason)


def _unavailable(reason: str) -> PublishResult:
    return PublishResult(PublishStatus.UNAVAILABLE, reason)
