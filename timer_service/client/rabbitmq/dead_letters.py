"""Dead letters on RabbitMQ: a stream, which is read from a number on."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import aiormq
from aiormq.abc import DeliveredMessage

from timer_service.client.errors import NoAnswerError
from timer_service.client.models import DeadLetter
from timer_service.client.rabbitmq.channels import close_channel, number
from timer_service.rabbit_client import ERRORS, reason_of

_PREFETCH = 500
_QUIET_SECONDS = 1.0
"""The stream has ended if nothing arrives for so long: the broker does not say where it ends."""


class DeadLetterLog:
    """The stream of the dead letters. Its numbers are their sequences."""

    def __init__(self, new_channel: Callable[[], Awaitable[aiormq.Channel]], stream: str) -> None:
        self._new_channel = new_channel
        self._stream = stream

    async def list(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """See `Link.dead_letters`. The whole stream is read: it cannot be read backwards."""
        newest = deque[DeadLetter](maxlen=limit)
        async for message in self._read("first"):
            letter = _letter(message)
            if before is not None and letter.sequence >= before:
                break
            if tenant in {"*", letter.tenant}:
                newest.append(letter)
        return [*reversed(newest)]

    async def get(self, sequence: int) -> DeadLetter | None:
        """See `Link.dead_letter`."""
        async for message in self._read(sequence):
            letter = _letter(message)
            if letter.sequence != sequence:
                return None
            headers = message.header.properties.headers or {}
            texts = {name: str(value) for name, value in headers.items() if not name.startswith("x-")}
            return replace(letter, headers=texts, body=message.body.decode(errors="backslashreplace"))
        return None

    async def _read(self, offset: str | int) -> AsyncIterator[DeliveredMessage]:
        """Iterate over the stream from a number on, up to its end."""
        arrived: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        try:
            channel = await self._new_channel()
            try:
                await channel.basic_qos(prefetch_count=_PREFETCH)
                await channel.basic_consume(self._stream, arrived.put, arguments={"x-stream-offset": offset})
                while True:
                    try:
                        async with asyncio.timeout(_QUIET_SECONDS):
                            message = await arrived.get()
                    except TimeoutError:
                        return
                    yield message
                    await channel.basic_ack(message.delivery_tag or 0)
            finally:
                await close_channel(channel)
        except ERRORS as error:
            raise NoAnswerError(
                f"the stream {self._stream} cannot be read: {reason_of(error)}; it needs the login of the operator"
            ) from error


def _letter(message: DeliveredMessage) -> DeadLetter:
    """Return a dead letter without its headers and its body."""
    properties = message.header.properties
    headers = properties.headers or {}
    tenant, _, name = (message.routing_key or "").partition(".")
    source = str(headers.get("Timer-Source-Sequence", ""))
    stored = properties.timestamp or datetime.fromtimestamp(0, UTC)
    return DeadLetter(
        sequence=number(headers.get("x-stream-offset")),
        tenant=tenant,
        message=name,
        code=str(headers.get("Timer-Error-Code", "")),
        reason=str(headers.get("Timer-Error-Message", "")),
        stored_at=stored,
        source_sequence=int(source) if source.isdecimal() else 0,
        size=len(message.body),
        headers={},
    )
