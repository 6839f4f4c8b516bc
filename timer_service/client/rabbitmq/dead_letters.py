"""Dead letters on RabbitMQ: a stream, which is read from a number on."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import aiormq
from aiormq.abc import DeliveredMessage

from timer_service.client.errors import NoAnswerError
from timer_service.client.models import DeadLetter
from timer_service.client.rabbitmq.channels import close_channel, number
from timer_service.rabbit_client import ERRORS, reason_of

_PREFETCH = 500


class DeadLetterLog:
    """The stream of the dead letters. Its numbers are their sequences."""

    def __init__(self, new_channel: Callable[[], Awaitable[aiormq.Channel]], stream: str) -> None:
        self._new_channel = new_channel
        self._stream = stream

    async def list(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """See `Link.dead_letters`. The whole stream is read: it cannot be read backwards."""
        newest = deque[DeadLetter](maxlen=limit)
        async with aclosing(self._read("first")) as messages:
            async for message in messages:
                letter = _letter(message)
                if before is not None and letter.sequence >= before:
                    break
                if tenant in {"*", letter.tenant}:
                    newest.append(letter)
        return [*reversed(newest)]

    async def get(self, sequence: int) -> DeadLetter | None:
        """See `Link.dead_letter`."""
        async with aclosing(self._read(sequence)) as messages:
            message = await anext(messages, None)
        letter = None if message is None else _letter(message)
        if message is None or letter is None or letter.sequence != sequence:  # it is an older or a newer one
            return None
        headers = message.header.properties.headers or {}
        texts = {name: str(value) for name, value in headers.items() if not name.startswith("x-")}
        return replace(letter, headers=texts, body=message.body.decode(errors="backslashreplace"))

    async def _read(self, offset: str | int) -> AsyncGenerator[DeliveredMessage, None]:
        """Iterate over the stream from a number on, up to its end."""
        arrived: list[DeliveredMessage] = []

        async def receive(message: DeliveredMessage) -> None:
            arrived.append(message)

        try:
            channel = await self._new_channel()
            try:
                await channel.basic_qos(prefetch_count=_PREFETCH)
                await channel.basic_consume(self._stream, receive, arguments={"x-stream-offset": offset})
                while True:
                    # What is stored and was not acknowledged comes before the answer to this.
                    await channel.queue_declare(self._stream, passive=True)
                    found, arrived = arrived, []
                    if not found:
                        return
                    for message in found:
                        yield message
                    await channel.basic_ack(found[-1].delivery_tag or 0, multiple=True)
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
