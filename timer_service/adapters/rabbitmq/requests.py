"""The connection for the queries and requests of tenants. A flood of them does not delay commands and events."""

import logging
from base64 import b64decode
from collections.abc import Collection, Sequence

from aiormq.abc import AbstractChannel, DeliveredMessage

from timer_service.adapters.rabbitmq.commands import read_reply_address, was_published_to, write_reply_address
from timer_service.adapters.rabbitmq.connection import Connection, Sender
from timer_service.adapters.rabbitmq.names import Names, read_key
from timer_service.adapters.rabbitmq.set_up import SetUp
from timer_service.cancellation import own_cancellation
from timer_service.core.intake.replies import may_reply_to
from timer_service.core.ports.broker import ReceiveRequest, Replies, Reply, Request
from timer_service.core.ports.health import Health
from timer_service.core.values.address import Kind
from timer_service.core.values.error_text import error_text
from timer_service.rabbit_client import ANSWER_SECONDS, ERRORS, reason_of

log = logging.getLogger(__name__)

_DIRECT = "amq.rabbitmq.reply-to."
REPLY_PREFIXES = (_DIRECT,)


class TenantRequests:
    """A `core.ports.broker.RequestSubscription` for queries and requests."""

    def __init__(self, connection: Connection, replies: Sender, names: Names, set_up: SetUp) -> None:
        self.connection = connection
        self._names = names
        self._set_up = set_up
        self._served: dict[Kind, tuple[Collection[str], ReceiveRequest]] = {}
        self._consumers: dict[Kind, str] = {}
        self._channel: AbstractChannel | None = None
        self._replies = replies

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
        await send_replies(self._replies, [Reply(each.reply_to, reply.body) for each, reply in replies])

    async def close(self) -> None:
        """Stop taking requests of workers."""
        self._served.pop(Kind.REQUEST, None)
        tag = self._consumers.pop(Kind.REQUEST, None)
        if tag is not None and self._channel is not None:
            try:
                with own_cancellation():
                    await self._channel.basic_cancel(tag, timeout=ANSWER_SECONDS)
            except ERRORS:
                log.debug("could not stop taking requests: the connection is lost")

    async def _begin(self) -> None:
        """Receive what is served, on a new connection."""
        channel = await self.connection.channel()
        channel.on_consumer_cancel_callbacks.add(self.connection.renew)
        for kind in self._served:
            await self._consume(channel, kind)
        self._channel = channel

    async def _consume(self, channel: AbstractChannel, kind: Kind) -> None:
        async def receive(message: DeliveredMessage) -> None:
            await self._receive(kind, message)

        queue = await self._set_up.prepare_requests(kind)
        self._consumers[kind] = (await channel.basic_consume(queue, receive, no_ack=True)).consumer_tag or ""

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


async def send_replies(sender: Sender, replies: Sequence[Reply]) -> None:
    """Send replies to their addresses. Nothing is raised; they are lost while the connection is lost or blocked."""
    try:
        for reply in replies:
            to, correlation_id = read_reply_address(reply.to)
            if is_direct_reply(to):
                await sender.send(reply.body, to, correlation_id=correlation_id)
    except ERRORS as error:
        log.warning("could not send replies", extra={"count": len(replies), "reason": reason_of(error)})


def is_direct_reply(address: str) -> bool:
    """Return whether the broker has made an address of direct replies: its prefix, a process of Erlang, and a key.

    Most others with the prefix let the broker fail, and close the connection.
    """
    process, _, key = address.removeprefix(_DIRECT).partition(".")
    try:
        found = b64decode(process, validate=True)
        b64decode(key, validate=True)
    except ValueError:
        return False
    width = {b"\x83Xd": 2, b"\x83Xv": 2, b"\x83Xw": 1}.get(found[:3])  # a process, and how its node is written
    return width is not None and len(found) == 3 + width + int.from_bytes(found[3 : 3 + width], "big") + 12
