"""PORT: what the core needs from a broker."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from timer_service.core.ports.health import Health
from timer_service.core.ports.log import CommandLog
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import Code
from timer_service.core.values.message import Message


class PublishStatus(StrEnum):
    """How publishing one message ended."""

    PUBLISHED = "published"
    REFUSED = "refused"
    """The broker rejects this message. It may store others."""
    FULL = "full"
    """The broker has no room now. The message is not the cause. A smaller batch may be stored."""
    UNAVAILABLE = "unavailable"
    """The broker did not answer, or stores nothing now. The message is not the cause, and may have been stored."""


TRANSIENT = frozenset({PublishStatus.FULL, PublishStatus.UNAVAILABLE})
"""The statuses that the message did not cause. Publishing it again later may succeed."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """How publishing one message ended, with the reason if it was not stored."""

    status: PublishStatus
    reason: str = ""


PUBLISHED = PublishResult(PublishStatus.PUBLISHED)

Publish = Callable[[Sequence[Message]], Awaitable[Sequence[PublishResult]]]
"""`Broker.publish`, or the same with something around it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to a client. It is lost if the client no longer listens."""

    to: str
    body: bytes


class QueryReply(NamedTuple):
    """The reply to a query or a request. An error also has a code and a message."""

    body: bytes
    code: Code | None = None
    message: str = ""


class Request(NamedTuple):
    """A query, or a request of a worker. `reply_to` is an inbox."""

    name: str
    tenant: str
    body: bytes
    reply_to: str


Replies = Sequence[tuple[Request, QueryReply]]
"""Requests and the replies to them."""

ReceiveRequest = Callable[[Request], Replies]
"""Takes a request and returns at once: the replies to those that are refused now, usually none. They are sent soon."""


class RequestSubscription(Protocol):
    """A share of the queries, or of the requests of workers. Instances share all of them."""

    @property
    def health(self) -> Health:
        """Whether requests arrive and replies can be sent, and the reason if not."""

    @property
    def outages(self) -> int:
        """How many times the connection was lost. Replies to the requests from before may not arrive."""

    async def reply(self, replies: Replies) -> None:
        """Send replies. It waits while the broker takes replies slowly. A reply may be lost; nothing is raised."""

    async def close(self) -> None:
        """Stop taking requests of workers. Those that were received can still be replied to."""


class Broker(Protocol):
    """The connection that has the log of commands, publishes events and receives queries and requests."""

    @property
    def max_message_bytes(self) -> int:
        """The largest body that the broker accepts."""

    @property
    def health(self) -> Health:
        """Whether messages can be published now, and the reason if not."""

    @property
    def outages(self) -> int:
        """How many times the connection was lost. Commands may have been stored meanwhile."""

    @property
    def reply_prefixes(self) -> tuple[str, ...]:
        """How the addresses begin to which replies may be sent."""

    @property
    def log(self) -> CommandLog:
        """The log of the commands."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages durably; return one result for each, in order. A broker failure is a result, not an error."""

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> RequestSubscription:
        """Pass the named queries or requests (`kind`) of every tenant to `receive`. The broker buffers none of them.

        Those that do not reply to an inbox are ignored. Queries are passed until this broker is closed,
        requests of workers until the subscription is closed.
        """

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send replies. A reply may be lost."""

    async def hint(self, loop: str, at: int) -> None:
        """Send every instance a hint: this loop has work at this instant. A hint may be lost."""

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        """Call `on_hint` with each hint of every instance until this broker is closed."""
