"""A broker in memory, for tests and for the simulation. A test can read everything that it stored."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tests.harness.memory_log import MemoryLog, StoredLog
from timer_service.core.ports.broker import (
    PUBLISHED,
    PublishResult,
    PublishStatus,
    QueryReply,
    ReceiveRequest,
    Replies,
    Reply,
    Request,
)
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Address, Kind
from timer_service.core.values.message import Message, Position

Predicate = Callable[[Message], bool]


def never(_message: Message) -> bool:
    """Return False: no message matches."""
    return False


async def _do_nothing(_messages: Sequence[Message]) -> None:
    pass


class MemoryBroker:
    """A `core.ports.broker.Broker` in memory. Tests can make it fail.

    While `health` is down, nothing can be published. The log of commands can be read unless `stored.away` is set.
    """

    max_message_bytes = MAX_MESSAGE_BYTES
    reply_prefixes = ("_INBOX.",)

    def __init__(self, *, deduplicates: bool = True, epoch: int = 1) -> None:
        """`deduplicates`: it drops a second message with the same id, as JetStream does for some minutes."""
        self._deduplicates = deduplicates
        self.outages = 0
        self._health = HEALTHY
        self.refuses: Predicate = never
        """Whether to refuse a message: its result is REFUSED."""
        self.has_no_room_for: Predicate = never
        """Whether a message finds the stream full: its result is FULL."""
        self.loses_acknowledgement_of: Predicate = never
        """Whether to store a message but report it as UNAVAILABLE."""
        self.before_publishing: Callable[[Sequence[Message]], Awaitable[None]] = _do_nothing
        """A hook that runs before each publish, for example to change rows after they are claimed."""
        self.events: list[Message] = []
        self.dead_letters: list[Message] = []
        self.replies: list[Reply] = []
        self.stored = StoredLog(epoch)
        """The commands in the log."""
        self._ids: set[tuple[Kind, str]] = set()
        self._request_receivers: dict[str, list[tuple[MemoryRequests, ReceiveRequest]]] = {}
        self._request_replies: dict[str, asyncio.Future[QueryReply]] = {}
        self._hint_listeners: list[Callable[[str, int], None]] = []

    @property
    def health(self) -> Health:
        """Whether messages can be published now. A test sets it."""
        return self._health

    @health.setter
    def health(self, health: Health) -> None:
        if self._health.usable and not health.usable:
            self.outages += 1
        self._health = health

    @property
    def log(self) -> MemoryLog:
        """The log of the commands, for one more reader."""
        return MemoryLog(self.stored)

    def send(
        self,
        address: Address,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        *,
        stored_at: int | None = None,
    ) -> Position:
        """Append a command to the log, as a client does. Return its position.

        `stored_at` is in nanoseconds. By default, the commands are stored one nanosecond after the other.
        """
        return self.stored.append(address, body, headers, message_id, stored_at)

    async def request(self, name: str, tenant: str, body: bytes = b"") -> QueryReply:
        """Send a query or a request, and wait for its reply. Instances that serve its name take turns.

        Raises KeyError or IndexError if no instance serves that name.
        """
        receivers = self._request_receivers[name]
        subscription, receive = receivers.pop(0)
        receivers.append((subscription, receive))
        request = Request(name, tenant, body, f"_INBOX.request-{len(self._request_replies)}")
        reply: asyncio.Future[QueryReply] = asyncio.get_running_loop().create_future()
        self._request_replies[request.reply_to] = reply
        await subscription.reply(receive(request))
        return await reply

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages, except where the test set a fault."""
        await self.before_publishing(messages)
        return [self._store(message) for message in messages]

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> "MemoryRequests":
        """Receive what is sent with `request`. No query has the name of a request."""
        del kind
        subscription = MemoryRequests(self)
        for name in names:
            self._request_receivers.setdefault(name, []).append((subscription, receive))
        return subscription

    def stop_requests(self, subscription: "MemoryRequests") -> None:
        """Pass no more requests to a subscription."""
        for receivers in self._request_receivers.values():
            receivers[:] = [each for each in receivers if each[0] is not subscription]

    def resolve_request(self, request: Request, reply: QueryReply) -> None:
        """Hand a reply over to the sender of a request. While the broker is down, replies are lost."""
        future = self._request_replies.get(request.reply_to)
        if self.health.usable and future is not None and not future.done():
            future.set_result(reply)

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Append to `replies`. While the broker is down, replies are lost."""
        if self.health.usable:
            self.replies += replies

    async def hint(self, loop: str, at: int) -> None:
        """Call every hint listener. While the broker is down, hints are lost."""
        if self.health.usable:
            for on_hint in self._hint_listeners:
                on_hint(loop, at)

    async def subscribe_hints(self, on_hint: Callable[[str, int], None]) -> None:
        """Call `on_hint` for every hint."""
        self._hint_listeners.append(on_hint)

    def _store(self, message: Message) -> PublishResult:
        """Store a message, unless the test set a fault for it. Return its result."""
        if not self.health.usable:
            return PublishResult(PublishStatus.UNAVAILABLE, self.health.reason or "")
        if len(message.body) > self.max_message_bytes:
            return PublishResult(PublishStatus.REFUSED, f"larger than {self.max_message_bytes} bytes")
        if self.refuses(message):
            return PublishResult(PublishStatus.REFUSED, "refused")
        if self.has_no_room_for(message):
            return PublishResult(PublishStatus.FULL, "full")
        self._append(message)
        if self.loses_acknowledgement_of(message):
            return PublishResult(PublishStatus.UNAVAILABLE, "the acknowledgement was lost")
        return PUBLISHED

    def _append(self, message: Message) -> None:
        """Store a message, unless one with its id was stored."""
        name = (message.address.kind, message.id)
        if self._deduplicates and name in self._ids:
            return
        self._ids.add(name)
        stored = self.dead_letters if message.address.kind is Kind.DEAD_LETTER else self.events
        stored.append(message)


class MemoryRequests:
    """The requests that one instance takes from a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    @property
    def health(self) -> Health:
        """The health of the broker."""
        return self._broker.health

    @property
    def outages(self) -> int:
        """How many times the broker was down."""
        return self._broker.outages

    async def reply(self, replies: Replies) -> None:
        """Send replies."""
        for request, reply in replies:
            self._broker.resolve_request(request, reply)

    async def close(self) -> None:
        """Stop taking requests."""
        self._broker.stop_requests(self)
