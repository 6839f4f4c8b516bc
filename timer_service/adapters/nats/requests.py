"""The connection for the queries and requests of tenants. A flood of them does not delay commands and events.

Each message is handed over when it is read, and does not wait in the large buffers of the driver.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version

import nats.errors
from nats.aio.subscription import Subscription
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from timer_service.adapters.nats.api import write_headers
from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.driver import GuardedClient, ReadMessage
from timer_service.adapters.nats.subjects import Subjects, read_subject
from timer_service.core.intake.replies import may_reply_to
from timer_service.core.ports.broker import QueryReply, ReceiveRequest, Replies, Request
from timer_service.core.ports.health import Health
from timer_service.core.ports.turns import Turns
from timer_service.core.values.address import Kind
from timer_service.core.values.error_text import error_text
from timer_service.core.values.raw_command import decode_text

log = logging.getLogger(__name__)

_IMPORTED_REPLY_PREFIX = "_R_."
"""Prefix of the reply subjects that the server makes for requests from other accounts. No client can choose one."""
_QUEUE = "timer-service"
_UNSENT_BYTES = 1024 * 1024
_BYTES_PER_TURN = 256 * 1024
_MOST_REFUSALS = 1000
"""How many refusals wait to be sent. Waiting for the server would end the reading, so the oldest are dropped."""


class TenantRequests:
    """A `core.ports.broker.RequestSubscription` for queries and requests.

    The queries are also the endpoints of a micro service `timer-service`, so `$SRV.PING`, `INFO` and `STATS` find them.
    """

    def __init__(self, subjects: Subjects, reply_prefix: str) -> None:
        """`reply_prefix`: of the inboxes to which replies are sent."""
        self.connection = Connection(
            "timer-service requests",
            unsent_bytes=_UNSENT_BYTES,
            part="the broker for queries and requests",
            new=lambda: GuardedClient(self._screen),
        )
        self._subjects = subjects
        self._reply_prefixes = reply_prefix, _IMPORTED_REPLY_PREFIX
        self._prefixes = {
            kind: subjects.pattern(kind).partition("*")[0].encode() for kind in (Kind.QUERY, Kind.REQUEST)
        }
        """How the subjects of each kind begin. `_screen` finds the kind of a message by it."""
        self._receivers: dict[Kind, ReceiveRequest] = {}
        self._service: Service | None = None
        """The micro service that subscribes to queries."""
        self._interests: list[Subscription] = []
        """The subscriptions to requests."""
        self._refusals: deque[tuple[str, QueryReply]] = deque(maxlen=_MOST_REFUSALS)
        self._refusing: asyncio.Task[None] | None = None
        """The task that sends the refusals, until there are none."""
        self._ignored = 0
        """How many messages were ignored, because their reply subjects are not inboxes."""

    @property
    def health(self) -> Health:
        """Down while the connection is lost."""
        return self.connection.health

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self.connection.outages

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> None:
        """Start to receive the named queries or requests. Instances share them."""
        self._receivers[kind] = receive
        subjects = {name: self._subjects.pattern(kind, name) for name in names}
        if kind is Kind.QUERY:
            description = "Queries about timers, signals, runs and buried events."
            config = ServiceConfig(name=_QUEUE, version=version("timer-service"), description=description)
            self._service = Service(self.connection.client, config)
            await self._service.start()
            for name, subject in subjects.items():
                await self._service.add_endpoint(EndpointConfig(name=name, subject=subject, handler=_ignore))
        else:
            for subject in subjects.values():
                self._interests.append(await self.connection.client.subscribe(subject, _QUEUE, cb=_ignore))
        await self.connection.flush()

    async def reply(self, replies: Replies) -> None:
        """Send replies. They are lost while the connection is lost."""
        turns = Turns(_BYTES_PER_TURN)
        for request, reply in replies:
            await turns.take(len(reply.body))
            await self._send((request.reply_to, reply))

    async def close(self) -> None:
        """Stop taking requests. Return when all were received that the server had sent."""
        interests, self._interests = self._interests, []
        try:
            for interest in interests:
                await interest.unsubscribe()
            await self.connection.flush()
        except nats.errors.Error:
            log.debug("could not unsubscribe from requests: the connection is lost")

    async def disconnect(self) -> None:
        """Stop taking queries, send the replies that are ready, and disconnect."""
        if self._service is not None and self.connection.client.is_connected:
            try:
                await self._service.stop()
            except nats.errors.Error:
                log.debug("could not stop the micro service: the connection is lost")
        await self.connection.close()

    def _screen(self, message: ReadMessage) -> ReadMessage | None:
        """Take queries and requests. Return what the driver gets: any other message, and an empty one for a query."""
        kind = next((each for each, prefix in self._prefixes.items() if message.subject.startswith(prefix)), None)
        if kind is None:
            return message
        reply_to = decode_text(message.reply)
        if not may_reply_to(reply_to, self._reply_prefixes):
            self._count_ignored()
            return None
        _, address = read_subject(kind, message.subject)
        refused = self._receivers[kind](Request(address.message, address.tenant, message.body, reply_to))
        self._refuse(refused)
        # The micro service only counts queries. Beside a flood it does not, because that takes time.
        return message._replace(headers=b"", body=b"") if kind is Kind.QUERY and not refused else None

    def _count_ignored(self) -> None:
        """Count a message that is ignored. Only the first, second, fourth, eighth and so on is logged."""
        self._ignored += 1
        if self._ignored & (self._ignored - 1) == 0:
            log.warning("messages ignored: their reply subjects are not inboxes", extra={"count": self._ignored})

    def _refuse(self, refused: Replies) -> None:
        """Let a task send refusals. `_screen` cannot wait for the server."""
        self._refusals += ((request.reply_to, reply) for request, reply in refused)
        if self._refusals and (self._refusing is None or self._refusing.done()):
            self._refusing = asyncio.create_task(self._send_refusals())

    async def _send_refusals(self) -> None:
        """Send the refusals that wait, and those that come meanwhile."""
        while self._refusals:
            refusals = [*self._refusals]
            self._refusals.clear()
            await self._send(*refusals)

    async def _send(self, *replies: tuple[str, QueryReply]) -> None:
        """Send replies. It waits while the server takes them slowly."""
        try:
            await self.connection.client.send(b"".join(map(_frame, replies)))
        except nats.errors.Error as error:
            log.warning("could not send replies", extra={"count": len(replies), "reason": error_text(error)})


def _frame(to_and_reply: tuple[str, QueryReply]) -> bytes:
    """Return the text of the protocol for a reply. An error has the headers of a micro service."""
    to, reply = to_and_reply
    if reply.code is None:
        return b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(reply.body), reply.body)
    return b"HPUB %b %b" % (to.encode(), _error(reply))


@lru_cache(100)
def _error(reply: QueryReply) -> bytes:
    """Return the rest of a frame with an error, from the sizes on. Many errors are equal."""
    block = write_headers({ERROR_CODE_HEADER: reply.code or "", ERROR_HEADER: reply.message})
    return b"%d %d\r\n%b%b\r\n" % (len(block), len(block) + len(reply.body), block, reply.body)


async def _ignore(_message: object) -> None:
    """Ignore a message, which `_screen` has taken."""
