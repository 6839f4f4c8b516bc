"""The broker port on RabbitMQ."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelAccessRefused

from timer_service.adapters.rabbitmq.connection import Connection, Sender
from timer_service.adapters.rabbitmq.log import RabbitLog
from timer_service.adapters.rabbitmq.names import Names
from timer_service.adapters.rabbitmq.publisher import Publisher
from timer_service.adapters.rabbitmq.requests import REPLY_PREFIXES, TenantRequests, send_replies
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.set_up import SetUp, StreamUpkeep
from timer_service.core.ports.broker import PublishResult, ReceiveRequest, Reply
from timer_service.core.ports.health import Health
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind
from timer_service.core.values.message import Message
from timer_service.rabbit_client import ERRORS

log = logging.getLogger(__name__)

_OVERLAP = timedelta(minutes=1)
_HINT_DIGITS = 15


class RabbitBroker:
    """`core.broker.Broker` on RabbitMQ."""

    max_message_bytes = MAX_MESSAGE_BYTES
    """The largest body that is published."""
    reply_prefixes = REPLY_PREFIXES
    """How the addresses of direct replies begin."""
    reading = True
    """A connection that is not read is closed, and opened again."""

    def __init__(self, server: Server, names: Names, *, manage: bool, overlap: timedelta) -> None:
        self._connection = Connection(server, "timer-service")
        self._names = names
        self._set_up = SetUp(self._connection, names, manage=manage)
        self.streams = StreamUpkeep(self._connection, names, self._set_up)
        """A worker that checks the streams, and their health."""
        self.log = RabbitLog(server, names, overlap, self._set_up.claim)
        """The log of the commands."""
        self._publisher = Publisher(self._connection, names)
        requests = Connection(server, "timer-service requests", "the broker for queries and requests")
        self._reply_connection = Connection(server, "timer-service replies", "the broker for replies")
        """Nothing else uses it, as a wrong address of a tenant lets the broker close it."""
        self._replies, self._hints = Sender(self._reply_connection), Sender(self._connection)
        self._requests = TenantRequests(requests, self._replies, names, SetUp(requests, names, manage=manage))
        self._on_hints: list[Callable[[str, int], None]] = []

    @classmethod
    async def connect(
        cls,
        url: str,
        prefix: str,
        *,
        login: Callable[[], Mapping[str, Any]] = dict,
        manage_streams: bool,
        overlap: timedelta = _OVERLAP,
    ) -> "RabbitBroker":
        """Connect, and prepare exchanges, streams and queues.

        `login` is called for each connect. It returns `user` and `password`, or neither, and for `amqps` maybe `tls`.

        `overlap`: another log is read from the time of the last command, and this much earlier, as clocks may differ.

        Raises `StartError` at once if the login is refused or something is wrong. Raises it after ten seconds, with the
        last reason, if no server answers.
        """
        broker = cls(Server(url, login), Names(prefix), manage=manage_streams, overlap=overlap)
        try:
            await broker._open()
        except BaseException:
            await broker.close()
            raise
        return broker

    @property
    def health(self) -> Health:
        """Down without a connection, and while the broker blocks publishers."""
        return self._connection.health

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self._connection.outages

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages in their streams. Return one result each."""
        return await self._publisher.publish(messages)

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> TenantRequests:
        """Receive queries or requests, on another connection. Raises `StartError` if it cannot be opened."""
        await self._requests.serve(kind, names, receive)
        return self._requests

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send direct replies."""
        await send_replies(self._replies, replies)

    async def hint(self, loop: str, at: int) -> None:
        """Send a wake-up hint to every instance."""
        try:
            await self._hints.send(b"%b %d" % (loop.encode(), at), "", exchange=self._names.hints)
        except ERRORS as error:
            log.debug("a hint was lost", extra={"reason": str(error)})

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        """Call `on_hint` for every hint of every instance. Messages that are no hints are ignored."""
        self._on_hints.append(on_hint)

    async def wait_lost(self) -> str:
        """Wait for ever: a connection is restored however often it is lost."""
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None:
        """Disconnect."""
        await self.log.close()
        for connection in (self._requests.connection, self._reply_connection, self._connection):
            await connection.close()

    async def _open(self) -> None:
        await self._connection.open(self._begin)
        await self._reply_connection.open()
        await self._set_up.prepare()

    async def _begin(self) -> None:
        """Receive hints, on a new connection."""
        channel = await self._connection.channel()
        channel.on_consumer_cancel_callbacks.add(self._connection.renew)
        queue = self._set_up.hint_queue = f"{self._names.hints}.{secrets.token_hex(8)}"
        try:
            await channel.queue_declare(queue, exclusive=True, auto_delete=True)
            await self._set_up.prepare_hints()
            await channel.basic_consume(queue, self._receive_hint, no_ack=True)
        except ChannelAccessRefused as error:  # without hints, timers of other instances only fire later
            log.warning("hints of other instances are not received", extra={"reason": str(error)})

    async def _receive_hint(self, message: DeliveredMessage) -> None:
        """Pass a hint on."""
        loop, _, at = message.body.decode(errors="replace").rpartition(" ")
        if loop and at.isascii() and at.isdigit() and len(at) <= _HINT_DIGITS:
            for on_hint in self._on_hints:
                on_hint(loop, int(at))
