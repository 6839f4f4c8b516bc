"""The connection for the queries and requests of tenants. A flood of them does not delay commands and events."""

import logging
from collections.abc import Collection, Sequence

from aiormq import spec
from aiormq.abc import AbstractChannel, DeliveredMessage

from timer_service.adapters.rabbitmq.commands import read_reply_address, was_published_to, write_reply_address
from timer_service.adapters.rabbitmq.connection import ERRORS, Connection, reason_of
from timer_service.adapters.rabbitmq.names import Names, read_key
from timer_service.adapters.rabbitmq.set_up import SetUp
from timer_service.core.intake.replies import may_reply_to
from timer_service.core.ports.broker import ReceiveRequest, Replies, Reply, Request
from timer_service.core.ports.health import Health
from timer_service.core.values.address import Kind
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

REPLY_PREFIXES = ("amq.rabbitmq.reply-to.",)


class TenantRequests:
    """A `core.ports.broker.RequestSubscription` for queries and requests."""

    def __init__(self, connection: Connection, names: Names, set_up: SetUp) -> None:
        self.connection = connection
        self._names = names
        self._set_up = set_up
        self._served: dict[Kind, tuple[Collection[str], ReceiveRequest]] = {}
        self._consumers: dict[Kind, str] = {}
        self._channel: AbstractChannel | None = None

    @property
    def health(self) -> Health:
        """Down while the connection is lost, or replies cannot be sent."""
        return self.connection.health

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self.connection.outages

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> None:
        """Start to receive the named queries or requests. Instances share them."""
        self._served[kind] = frozenset(names), receive
        if self._channel is None:
            await self.connection.open(self._begin)
        else:
            await self._consume(self._channel, kind)

    async def reply(self, replies: Replies) -> None:
        """Send replies. They are lost while the connection is lost or blocked."""
        await send_replies(
            self.connection, self._channel, [Reply(each.reply_to, reply.body) for each, reply in replies]
        )

    async def close(self) -> None:
        """Stop taking requests of workers."""
        self._served.pop(Kind.REQUEST, None)
        tag = self._consumers.pop(Kind.REQUEST, None)
        if tag is not None and self._channel is not None:
            try:
                await self._channel.basic_cancel(tag)
            except ERRORS:
                log.debug("could not stop taking requests: the connection is lost")

    async def _begin(self) -> None:
        """Receive what is served, on a new connection."""
        channel = await self.connection.channel()
        channel.on_consumer_cancel_callbacks.add(self._renew)
        for kind in self._served:
            await self._consume(channel, kind)
        self._channel = channel

    async def _consume(self, channel: AbstractChannel, kind: Kind) -> None:
        async def receive(message: DeliveredMessage) -> None:
            await self._receive(kind, message)

        queue = await self._set_up.prepare_requests(kind)
        self._consumers[kind] = (await channel.basic_consume(queue, receive, no_ack=True)).consumer_tag or ""

    async def _renew(self, _frame: object) -> None:
        """Connect again, because the broker has ended a subscription: its queue was deleted."""
        await self.connection.renew()

    async def _receive(self, kind: Kind, message: DeliveredMessage) -> None:
        """Pass a query or a request on, and send the refusals."""
        names, receive = self._served.get(kind, ((), None))
        address = read_key(kind, message.routing_key or "")
        properties = message.header.properties
        reply_to = write_reply_address(properties.reply_to or "", properties.correlation_id)
        is_direct = was_published_to(self._names.exchange(kind), message.exchange, properties.headers or {})
        if not is_direct or not may_reply_to(reply_to, REPLY_PREFIXES):
            log.debug("ignored a request", extra={"query": address.message, "reply_to": reply_to})
        elif receive is not None and address.message in names:
            try:
                refused = receive(Request(address.message, address.tenant, message.body, reply_to))
            except Exception as error:  # noqa: BLE001 - a bug must not end the subscription
                log.error("a message could not be processed", extra={"reason": error_text(error)})  # noqa: TRY400
            else:
                if refused:
                    await self.reply(refused)


async def send_replies(connection: Connection, channel: AbstractChannel | None, replies: Sequence[Reply]) -> None:
    """Send replies to their addresses. Nothing is raised; they are lost while the connection is lost or blocked."""
    if channel is None or not connection.health.usable:
        return
    try:
        for reply in replies:
            to, correlation_id = read_reply_address(reply.to)
            await channel.basic_publish(
                reply.body,
                routing_key=to,
                properties=spec.Basic.Properties(correlation_id=correlation_id),
            )
    except ERRORS as error:
        log.warning("could not send replies", extra={"count": len(replies), "reason": reason_of(error)})
