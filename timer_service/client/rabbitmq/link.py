"""A connection to RabbitMQ, with the exchanges of the contracts."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import aiormq
from aiormq import spec
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import PublishError

from timer_service.client.commands import Command
from timer_service.client.errors import NoAnswerError
from timer_service.client.link import Subscription, no_service
from timer_service.client.lookup import Broker
from timer_service.client.models import DeadLetter
from timer_service.client.numbered_link import NumberedLink
from timer_service.client.rabbitmq.channels import close_channel, new_channel, on_closed
from timer_service.client.rabbitmq.dead_letters import DeadLetterLog
from timer_service.client.rabbitmq.queue import QueueSubscription
from timer_service.client.receive.filters import Consumer
from timer_service.client.watches import Watch
from timer_service.core.values.address import Kind
from timer_service.rabbit_client import ERRORS, Server, reason_of

_DIRECT = "amq.rabbitmq.reply-to"
_DURABLE = 2
_BLOCKED = "RabbitMQ has an alarm, so it takes no messages: its memory or its disk is nearly full"


class RabbitLink(NumberedLink):
    """A connection to RabbitMQ that publishes, and one that receives, which the server does not block at an alarm.

    The number of a call is its correlation id. The link is lost when the connection that publishes is.
    """

    def __init__(self, server: Server, name: str, prefix: str) -> None:
        """`name`: for the server."""
        super().__init__(ERRORS, reason_of)
        self._server = server
        self._name = name
        self._prefix = prefix
        self._connection: aiormq.Connection | None = None
        self._channel: aiormq.Channel | None = None
        """Publishes, and gets the replies: these only come to the channel that has asked."""
        self._receiving: aiormq.Connection | None = None
        """Has the channels for what is received. It is opened for the first of them."""
        self._opening = asyncio.Lock()
        self._watches: dict[Watch, aiormq.Channel] = {}

    @property
    def command_log(self) -> str:
        """See `Link.command_log`."""
        return f"the stream {self._exchange(Kind.COMMAND)}.log"

    async def close(self) -> None:
        """See `Link.close`."""
        await super().close()
        async with self._opening:
            if self._receiving is not None:
                await asyncio.shield(self._receiving.close())

    async def channel(self) -> aiormq.Channel:
        """Open a channel for what is received. Raises `NoAnswerError` without a connection, and one of `ERRORS`."""
        async with self._opening:
            self.check()
            if self._receiving is None or self._receiving.is_closed:
                self._receiving = await self._server.connect(self._name)
        return await new_channel(self._receiving)

    async def join(self, watch: Watch) -> None:
        """See `Link.join`."""

        async def receive(message: DeliveredMessage) -> None:
            watch.add(message.body)

        try:
            channel = self._watches[watch] = await self.channel()
            queue = (await channel.queue_declare(exclusive=True, auto_delete=True)).queue or ""
            for message in watch.messages:
                for key in (f"{watch.tenant}.{message}", f"{watch.tenant}.{message}.*"):
                    await channel.queue_bind(queue, self._exchange(Kind.EVENT), key)
            await channel.basic_consume(queue, receive, no_ack=True)
            on_closed(channel, watch.end_lost)
        except ERRORS as error:
            raise NoAnswerError(f"events may be missing: they cannot be watched ({reason_of(error)})") from error

    async def leave(self, watch: Watch) -> None:
        """See `Link.leave`."""
        channel = self._watches.pop(watch, None)
        if channel is not None:
            await close_channel(channel)

    async def dead_letters(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """See `Link.dead_letters`."""
        return await self._dead_letter_log().list(tenant, limit, before)

    async def dead_letter(self, sequence: int) -> DeadLetter | None:
        """See `Link.dead_letter`."""
        return await self._dead_letter_log().get(sequence)

    def consume(self, consumer: Consumer, ahead: int) -> Subscription:
        """See `Link.consume`."""
        return QueueSubscription(self, self.channel, self._exchange(Kind.EVENT), consumer=consumer, ahead=ahead)

    def _dead_letter_log(self) -> DeadLetterLog:
        return DeadLetterLog(self.channel, f"{self._exchange(Kind.DEAD_LETTER)}.log")

    def _exchange(self, kind: Kind) -> str:
        return f"{self._prefix}.{kind}"

    async def _publish_command(self, command: Command, trace: Mapping[str, str], number: str | None) -> None:
        """See `NumberedLink._publish_command`."""
        properties = spec.Basic.Properties(
            message_id=command.id,
            headers={**command.trace, **trace},
            reply_to=None if number is None else _DIRECT,
            correlation_id=number,
            delivery_mode=_DURABLE,
        )
        if not await self._publish(Kind.COMMAND, f"{command.tenant}.{command.message}", command.body, properties):
            raise NoAnswerError(f"nothing stores commands: the exchange {self._exchange(Kind.COMMAND)} has no stream")

    async def _publish_request(self, kind: Kind, tenant: str, name: str, body: bytes, number: str) -> None:
        """See `NumberedLink._publish_request`."""
        properties = spec.Basic.Properties(reply_to=_DIRECT, correlation_id=number)
        if not await self._publish(kind, f"{tenant}.{name}", body, properties):
            raise no_service(kind)

    async def _publish(self, kind: Kind, key: str, body: bytes, properties: spec.Basic.Properties) -> bool:
        """Publish a message, and return whether a queue or a stream has got it."""
        if self._channel is None or self._connection is None:
            raise NoAnswerError(f"not connected to the broker: {self._problem}")
        if await _is_blocked(self._connection):
            raise NoAnswerError(_BLOCKED)
        try:
            confirmed = await self._channel.basic_publish(
                body, exchange=self._exchange(kind), routing_key=key, properties=properties, mandatory=True
            )
        except PublishError:  # it came back
            return False
        return isinstance(confirmed, spec.Basic.Ack)

    async def _receive_replies(self) -> None:
        """See `NumberedLink._receive_replies`."""

        async def receive(message: DeliveredMessage) -> None:
            self._give(message.header.properties.correlation_id or "", message.body)

        self._connection = await self._server.connect(self._name)
        try:
            self._channel = await new_channel(self._connection, confirms=True)
            await self._channel.basic_consume(_DIRECT, receive, no_ack=True)
            self._set_connected()
            closing = self._channel.closing
            await asyncio.wait([closing])
            error = None if closing.cancelled() else closing.exception()
            raise error if isinstance(error, Exception) else ConnectionError("connection lost")
        finally:
            connection, self._connection, self._channel = self._connection, None, None
            await asyncio.shield(connection.close())


async def _is_blocked(connection: aiormq.Connection) -> bool:
    """Return whether the server has said that it reads nothing from a connection."""
    try:
        async with asyncio.timeout(0):
            await connection.ready()  # at once, unless it is blocked
    except TimeoutError:
        return True
    return False


async def connect(broker: Broker, name: str, prefix: str, options: Mapping[str, Any]) -> RabbitLink:
    """Connect to RabbitMQ. Raises `NoAnswerError`, and ValueError with the name of an option that it has not."""
    given = {key: value for key, value in options.items() if key != "inbox_prefix"}  # replies need no names
    login = given.pop("login", None)
    if login is None:
        login = partial(dict, **{key: given.pop(key) for key in ("user", "password", "tls") if key in given})
    for option in given:
        raise ValueError(f"{option} must be left out: a connection to RabbitMQ has user, password, tls and login")
    link = RabbitLink(await asyncio.to_thread(Server, broker.url, login), name, prefix)
    await link.open(broker.url)
    return link
