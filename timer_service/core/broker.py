"""PORT: what the core needs of a broker. Differences between brokers are data (`BrokerFeatures`), not branches."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from timer_service.core.errors import Code
from timer_service.core.health import Health
from timer_service.core.message import Address, Message, Position

BATCH_BYTES = 8 * 1024 * 1024
"""What the commands of one batch may have in all, unless it is one."""


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """What a broker can do; the contract suite asks for no more than is declared."""

    deduplicates: bool
    """Drops a second message with the id of a stored one, at least for some minutes."""
    max_message_bytes: int
    """The largest body it takes."""


class PublishStatus(StrEnum):
    """How publishing one message ended."""

    PUBLISHED = "published"
    REFUSED = "refused"
    """The broker won't store this message; others may pass."""
    FULL = "full"
    """There is no room for it now: not this message's fault. Fewer at once may pass."""
    UNAVAILABLE = "unavailable"
    """Nothing is known or nothing can be stored now: not this message's fault. It may be stored all the same."""


ABSOLVED = frozenset({PublishStatus.FULL, PublishStatus.UNAVAILABLE})
"""What a message can't be blamed for."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """How publishing one message ended, and why if it wasn't stored."""

    status: PublishStatus
    reason: str = ""


PUBLISHED = PublishResult(PublishStatus.PUBLISHED)


@dataclass(slots=True, eq=False)
class Delivery:
    """One command as the broker hands it over, to be settled exactly once through its subscription."""

    address: Address
    source: str
    """The broker's own name of where it came from, for the dead letter."""
    message_id: str
    """Names the delivery where its envelope doesn't; an identifier as contracts/README.md has it."""
    body: bytes
    headers: dict[str, str]
    position: Position
    attempt: int
    """1 when handed over for the first time."""
    handle: Any
    """The subscription's own; nobody else looks inside."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to whoever asked; lost when nobody listens any more."""

    to: str
    body: bytes


class QueryReply(NamedTuple):
    """The answer to a query; for an error also its code and message."""

    body: bytes
    code: Code | None = None
    message: str = ""


QueryHandler = Callable[[str, str, bytes], Awaitable[QueryReply]]
"""Answers a query given its name, the tenant that asks, and its body."""


class Subscription(Protocol):
    """A share of the commands. What isn't settled is delivered again, to this instance or another."""

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands; return 1 to `limit` of them, or none once the subscription is closed.

        Together they have no more than `BATCH_BYTES`, unless it is one.
        """
        ...

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle: handled, never again."""
        ...

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Settle: not handled, deliver again after `delay`."""
        ...

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle: can never be handled, its dead letter is stored."""
        ...

    async def close(self) -> None:
        """Take no more commands. Those handed out may still be settled; those still buffered come again."""
        ...


class Broker(Protocol):
    """Commands in, events out."""

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        ...

    @property
    def health(self) -> Health:
        """Whether messages can be published now."""
        ...

    async def subscribe(self, *, alone: bool = False) -> Subscription:
        """Join the commands of every tenant.

        `alone`: no other instance can have commands, so what a dead one had not settled comes again at once.
        """
        ...

    async def caught_up(self, *, afresh: bool = False) -> bool:
        """Return whether every command that waited is settled, by whichever instance.

        The commands meant are those in the stream when this was last asked `afresh`, or first asked since it was last
        true or since the last connect. While the broker can't be used it is not true.
        """
        ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages durably; return one result each, in order. Raises nothing for a broker at fault."""
        ...

    async def serve_queries(self, names: Sequence[str], answer: QueryHandler) -> None:
        """Let `answer` answer the named queries of every tenant until this broker is closed."""
        ...

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send answers, best effort."""
        ...

    async def hint(self, loop: str, at: int) -> None:
        """Tell every instance that a loop has something to do at an instant; best effort, nothing relies on it."""
        ...

    async def subscribe_hints(self, heard: Callable[[str, int], None]) -> None:
        """Pass on the hints of every instance until this broker is closed."""
        ...
