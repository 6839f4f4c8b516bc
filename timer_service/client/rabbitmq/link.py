"""A connection to RabbitMQ, with the exchanges of the contracts."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiormq
from aiormq import spec
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import PublishError

from timer_service.client.commands import Command, Exchange
from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.client.link import Link, Subscription
from timer_service.client.lookup import Broker, url_without_login
from timer_service.client.models import DeadLetter
from timer_service.client.rabbitmq.channels import (
    ERRORS,
    Login,
    Server,
    close_channel,
    new_channel,
    on_closed,
    reason_of,
)
from timer_service.client.rabbitmq.dead_letters import DeadLetterLog
from timer_service.client.rabbitmq.queue import QueueSubscription
from timer_service.client.receive.filters import Consumer
from timer_service.client.watches import Watch
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind

log = logging.getLogger(__name__)

_DIRECT = "amq.rabbitmq.reply-to"
_DURABLE = 2
_RECONNECT_SECONDS = 0.2


class RabbitLink(Link):
    """A connection to RabbitMQ. It is lost while its channel is, because no outcome can arrive."""

    def __init__(self, server: Server, prefix: str) -> None:
        super().__init__()
        self._server = server
        self._prefix = prefix
        self._connection: aiormq.Connection | None = None
        self._channel: aiormq.Channel | None = None
        """Publishes, and gets the replies: these only come to the channel that has asked."""
        self._numbers = itertools.count(1)
        self._takers: dict[str, Callable[[bytes], None]] = {}
        """Who gets the replies with a correlation id."""
        self._watches: dict[Watch, aiormq.Channel] = {}
        self._problem: str | None = ""
        self._tried = asyncio.Event()
        self._lost = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def largest(self) -> int:
        """See `Link.largest`. The server allows more, but the service does not."""
        return MAX_MESSAGE_BYTES

    @property
    def command_log(self) -> str:
        """See `Link.command_log`."""
        return f"the stream {self._prefix}.{Kind.COMMAND}.log"

    @property
    def problem(self) -> str | None:
        """See `Link.problem`."""
        return self._problem

    async def open(self) -> None:
        """Connect. Raises `NoAnswerError` with the reason if the first attempt fails."""
        self._keeping = asyncio.create_task(self._keep())
        await self._tried.wait()
        if self._problem is not None:
            raise NoAnswerError(self._problem)

    async def close(self) -> None:
        """See `Link.close`."""
        self._problem = "it is closed"
        self.is_closed = True
        self.lose()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        await self._disconnect()

    async def channel(self) -> aiormq.Channel:
        """Open a channel for what is received. Raises `NoAnswerError` without a connection, and one of `ERRORS`."""
        self.check()
        return await new_channel(self._connection)

    async def exchange(self, exchange: Exchange) -> None:
        """See `Link.exchange`."""
        with self._replies(exchange.receive) as number:
            published = [self._publish_command(each, exchange.trace, number) for each in exchange.commands]
            for command, refusal in zip(exchange.commands, await asyncio.gather(*published), strict=True):
                if refusal is not None:
                    exchange.refuse(command.id, refusal)
            await exchange.wait()

    async def store(self, commands: Sequence[Command], endings: dict[str, str | None]) -> None:
        """See `Link.store`."""

        async def store_one(command: Command) -> str | None:
            refusal = await self._publish_command(command, {}, None)
            if refusal is None:
                endings[command.id] = None
            return refusal

        refusals = [each for each in await asyncio.gather(*map(store_one, commands)) if each is not None]
        if refusals:
            raise NoAnswerError(refusals[0])

    async def request(self, kind: Kind, tenant: str, name: str, body: bytes, timeout_seconds: float) -> bytes:
        """See `Link.request`."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(found: bytes) -> None:
            if not answer.done():
                answer.set_result(found)

        try:
            async with asyncio.timeout(timeout_seconds):
                with self._replies(take) as number:
                    properties = spec.Basic.Properties(reply_to=_DIRECT, correlation_id=number)
                    if not await self._publish(kind, f"{tenant}.{name}", body, properties):
                        what = "queries" if kind is Kind.QUERY else "requests of workers"
                        raise NoAnswerError(f"no service answers {what} here; is timer-service running?")
                    return await answer
        except TimeoutError as error:
            raise NoAnswerError(f"no answer within {timeout_seconds} s; is timer-service running?") from error
        except ERRORS as error:
            raise NoAnswerError(reason_of(error)) from error

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

    async def _publish_command(self, command: Command, trace: Mapping[str, str], number: str | None) -> str | None:
        """Publish a command. Return why the broker did not store it, or None."""
        properties = spec.Basic.Properties(
            message_id=command.id,
            headers={**command.trace, **trace},
            reply_to=None if number is None else _DIRECT,
            correlation_id=number,
            delivery_mode=_DURABLE,
        )
        try:
            if await self._publish(Kind.COMMAND, f"{command.tenant}.{command.message}", command.body, properties):
                return None
        except ERRORS as error:
            return f"the command may not be stored: {reason_of(error)}"
        return f"nothing stores commands: the exchange {self._exchange(Kind.COMMAND)} has no stream"

    async def _publish(self, kind: Kind, key: str, body: bytes, properties: spec.Basic.Properties) -> bool:
        """Publish a message, and return whether a queue or a stream has got it."""
        if self._channel is None:
            raise NoAnswerError(f"not connected to the broker: {self._problem}")
        try:
            confirmed = await self._channel.basic_publish(
                body, exchange=self._exchange(kind), routing_key=key, properties=properties, mandatory=True
            )
        except PublishError:  # it came back
            return False
        return isinstance(confirmed, spec.Basic.Ack)

    @contextmanager
    def _replies(self, take: Callable[[bytes], None]) -> Iterator[str]:
        """Give the replies with a new correlation id to a function, during the block."""
        number = str(next(self._numbers))
        self._takers[number] = take
        try:
            yield number
        finally:
            del self._takers[number]

    async def _receive_reply(self, message: DeliveredMessage) -> None:
        """Give a reply to the call that waits for it."""
        take = self._takers.get(message.header.properties.correlation_id or "")
        if take is not None:
            try:
                take(message.body)
            except TimerServiceError as error:
                log.warning("an outcome is ignored: %s", error)

    async def _keep(self) -> None:
        """Connect, and connect again whenever the connection or the channel is lost."""
        while True:
            self._lost.clear()
            try:
                self._connection = await self._server.connect()
                channel = await new_channel(self._connection, confirms=True)
                await channel.basic_consume(_DIRECT, self._receive_reply, no_ack=True)
                on_closed(channel, self._lost.set)
            except Exception as error:  # noqa: BLE001 - whatever it is, only another attempt helps
                self._problem = reason_of(error)
                await self._disconnect()
            else:
                self._channel, self._problem = channel, None
                self._tried.set()
                await self._lost.wait()
                self._problem = _why_closed(channel)
                await self._disconnect()
                self.lose()
            self._tried.set()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await asyncio.shield(connection.close())


def _why_closed(channel: aiormq.Channel) -> str:
    """Return why a channel was closed."""
    closing = channel.closing
    error = closing.exception() if closing.done() and not closing.cancelled() else None
    return "connection lost" if error is None else reason_of(error)


async def connect(broker: Broker, name: str, prefix: str, options: Mapping[str, Any]) -> RabbitLink:
    """Connect to RabbitMQ. Raises `NoAnswerError`, and ValueError with the name of an option that it has not."""
    given = {key: value for key, value in options.items() if key != "inbox_prefix"}  # replies need no names
    login: Login | None = given.pop("login", None)
    if login is None:
        login = partial(
            dict, user=given.pop("user", None), password=given.pop("password", None), tls=given.pop("tls", None)
        )
    for option in given:
        raise ValueError(f"{option} must be left out: a connection to RabbitMQ has user, password, tls and login")
    link = RabbitLink(await asyncio.to_thread(Server, broker.url, name, login), prefix)
    try:
        await link.open()
    except NoAnswerError as error:
        await link.close()
        raise NoAnswerError(f"cannot connect to the broker at {url_without_login(broker.url)}: {error}") from error
    except asyncio.CancelledError:
        await link.close()
        raise
    return link
