"""What a user does at RabbitMQ, by the contracts alone."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from rstream import amqp_decoder

from tests.harness.waiting import until
from tests.harness.wire import PATIENCE_SECONDS, Receive, Stored, number_of
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.stream import FIRST, LAST, Chunk, StreamConnection
from timer_service.core.values.address import Address, Kind

REPLY_TO = "amq.rabbitmq.reply-to"
_ASKED = "ask-"


class RabbitWire:
    """The `Wire` of RabbitMQ. The number behind its inbox is the correlation id of a command."""

    inbox = "reply"

    def __init__(self, url: str, channel: AbstractChannel, receive: Receive, prefix: str = "timer") -> None:
        self.channel = channel
        self._url = url
        self._prefix = prefix
        self._receive = receive
        self._numbers = count()
        self._asked: dict[str, asyncio.Future[bytes]] = {}

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, receive: Receive, prefix: str = "timer") -> AsyncIterator["RabbitWire"]:
        """Connect, and pass on the replies."""
        async with await aio_pika.connect(url) as connection:
            wire = cls(url, await connection.channel(), receive, prefix)
            await (await wire.channel.get_queue(REPLY_TO, ensure=False)).consume(wire._receive_reply, no_ack=True)
            yield wire

    async def publish(self, address: Address, body: bytes, headers: Mapping[str, str], message_id: str | None) -> None:
        others: dict[str, Any] = dict(headers)
        properties: dict[str, Any] = {"message_id": message_id} if message_id else {}
        if to := others.pop("Timer-Reply-To", None):
            is_inbox = to.startswith(f"{self.inbox}.")
            properties |= {"reply_to": REPLY_TO, "correlation_id": str(number_of(to))} if is_inbox else {"reply_to": to}
        message = aio_pika.Message(body, headers=others, **properties)
        await self.send(f"{self._prefix}.cmd", f"{address.tenant}.{address.message}", message)

    async def ask(self, kind: Kind, name: str, tenant: str, body: bytes) -> bytes:
        number = f"{_ASKED}{next(self._numbers)}"
        reply = self._asked[number] = asyncio.get_running_loop().create_future()
        message = aio_pika.Message(body, reply_to=REPLY_TO, correlation_id=number)
        await self.send(f"{self._prefix}.{kind}", f"{tenant}.{name}", message)
        return await asyncio.wait_for(reply, PATIENCE_SECONDS)

    async def stored(self, kind: Kind, tenant: str) -> Sequence[Stored]:
        connection = await StreamConnection.open(Server(self._url), f"{self._prefix}.{kind}.log")
        chunks: list[Chunk] = []

        def receive(chunk: Chunk) -> None:
            chunks.append(chunk)
            connection.ask_more(1)

        try:
            last = await connection.look(LAST)
            await connection.follow(FIRST, 1, receive)
            await until(lambda: last is None or (bool(chunks) and chunks[-1].end >= last.end))
        finally:
            await connection.close()
        found = [(chunk.stored_at, amqp_decoder(each)) for chunk in chunks for each in chunk.messages]
        return [_to_stored(kind, *each) for each in found if _key(each[1]).startswith(f"{tenant}.")]

    async def send(self, exchange: str, key: str, message: aio_pika.Message) -> None:
        """Publish a message. Return when the broker has confirmed it."""
        await (await self.channel.get_exchange(exchange, ensure=False)).publish(message, key)

    async def _receive_reply(self, message: AbstractIncomingMessage) -> None:
        number = message.correlation_id or ""
        if number in self._asked:
            self._asked[number].set_result(message.body)
        elif number.isdigit():
            self._receive(int(number), message.body)


def _to_stored(kind: Kind, stored_at: int, message: Any) -> Stored:
    """Convert a message of a stream."""
    headers = {name.decode(): value.decode() for name, value in (message.application_properties or {}).items()}
    address = Address(kind, *_key(message).split("."))
    return Stored(address, message.properties.message_id.decode(), message.body or b"", headers, stored_at / 1_000_000)


def _key(message: Any) -> str:
    key: str = message.message_annotations[b"x-routing-key"].decode()
    return key
