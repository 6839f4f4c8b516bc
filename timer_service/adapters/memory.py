"""A broker in this process, for tests and simulation: nothing happens by itself, and all that happens can be read."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate

from timer_service.core.broker import (
    BATCH_BYTES,
    PUBLISHED,
    BrokerFeatures,
    Delivery,
    PublishResult,
    PublishStatus,
    QueryHandler,
    QueryReply,
    Reply,
)
from timer_service.core.health import HEALTHY
from timer_service.core.message import Address, Kind, Message, Position

FEATURES = BrokerFeatures(deduplicates=True, max_message_bytes=1024 * 1024)

Predicate = Callable[[Message], bool]


def never(_message: Message) -> bool:
    """Hold for no message."""
    return False


async def _nothing(_messages: Sequence[Message]) -> None:
    pass


@dataclass(slots=True)
class _Command:
    """One entry of the command log."""

    position: Position
    address: Address
    message_id: str
    body: bytes
    headers: dict[str, str]
    attempts: int = 0
    settled: bool = False


class _Queue:
    """The commands to be handed over next, shared by all subscriptions."""

    def __init__(self) -> None:
        self.commands: list[_Command] = []
        self.changed = asyncio.Event()

    def put(self, commands: Sequence[_Command]) -> None:
        self.commands += commands
        self.changed.set()

    def put_first(self, commands: Sequence[_Command]) -> None:
        self.commands[:0] = commands
        self.changed.set()

    def take(self, limit: int) -> list[_Command]:
        sizes = accumulate(len(command.body) for command in self.commands[:limit])
        count = max(1, sum(size <= BATCH_BYTES for size in sizes))
        taken = self.commands[:count]
        del self.commands[:count]
        return taken

    def remove(self, positions: Collection[Position]) -> None:
        self.commands = [command for command in self.commands if command.position not in positions]


@dataclass(slots=True)
class Settlements:
    """How deliveries were settled, in order."""

    acknowledged: list[Position] = field(default_factory=list)
    retried: list[tuple[Position, timedelta]] = field(default_factory=list)
    terminated: list[Position] = field(default_factory=list)


class MemoryBroker:
    """`core.broker.Broker` without a network, its faults at the tester's command.

    Trouble hits what is published and replied; commands already in the log are still handed over.
    """

    def __init__(self, *, features: BrokerFeatures = FEATURES, epoch: int = 1) -> None:
        self.features = features
        self.health = HEALTHY
        self._backlog: frozenset[Position] | None = None
        self.refuses: Predicate = never
        """Which messages are REFUSED."""
        self.loses_acknowledgement_of: Predicate = never
        """Which messages are stored, but reported as UNAVAILABLE."""
        self.before_publishing: Callable[[Sequence[Message]], Awaitable[None]] = _nothing
        """What happens in the world between a claim and its publishing."""
        self.events: list[Message] = []
        self.dead_letters: list[Message] = []
        self.replies: list[Reply] = []
        self.settlements = Settlements()
        self._epoch = epoch
        self._log: dict[Position, _Command] = {}
        self._queue = _Queue()
        self._ids: set[tuple[Kind, str]] = set()
        self._answers: dict[str, QueryHandler] = {}
        self._hears: list[Callable[[str, int], None]] = []
        self._backlog = None

    @property
    def unsettled(self) -> frozenset[Position]:
        """The commands that were neither acknowledged nor terminated."""
        return frozenset(position for position, command in self._log.items() if not command.settled)

    @property
    def waiting(self) -> list[Position]:
        """The commands to be handed over next, in this order."""
        return [command.position for command in self._queue.commands]

    def send(
        self, address: Address, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None
    ) -> Position:
        """Append a command to the log, as its sender would."""
        position = Position(self._epoch, len(self._log) + 1)
        command = _Command(position, address, message_id or f"message-{position.sequence}", body, dict(headers or {}))
        self._log[position] = command
        self._queue.put([command])
        return position

    def recreate(self, epoch: int) -> None:
        """Lose the command log and begin another one, its sequence at 1 again."""
        self._epoch = epoch
        self._log.clear()
        self._queue.commands.clear()

    def redeliver(self) -> None:
        """Hand over again all that was handed over or given back and not settled, as after a crash or a long wait."""
        waiting = set(self.waiting)
        lapsed = [each for each in self._log.values() if not each.settled and each.position not in waiting]
        self._queue.put_first(lapsed)

    def deliver(self, *positions: Position) -> None:
        """Hand these commands over next, in this order, even if they were settled."""
        self._queue.remove(positions)
        self._queue.put_first([self._log[position] for position in positions])

    def withhold(self, *positions: Position) -> None:
        """Hand these commands over only once `deliver` names them."""
        self._queue.remove(positions)

    def shuffle(self, rng: random.Random) -> None:
        """Hand the waiting commands over in another order."""
        rng.shuffle(self._queue.commands)

    async def ask(self, name: str, tenant: str, body: bytes = b"") -> QueryReply:
        """Ask a query, as its sender would. Raises KeyError when nobody answers queries of that name."""
        return await self._answers[name](name, tenant, body)

    async def caught_up(self, *, restart: bool = False) -> bool:
        """Return whether all is settled that was unsettled when this was first asked since it last was so."""
        if not self.health.usable:
            return False
        unsettled = self.unsettled
        backlog = unsettled if restart or self._backlog is None else self._backlog & unsettled
        self._backlog = backlog or None
        return not backlog

    async def subscribe(self, *, alone: bool = False) -> "MemorySubscription":
        """Join the commands. `alone`: what was handed over and not settled is handed over again."""
        if alone:
            self.redeliver()
        return MemorySubscription(self._queue, self.settlements)

    async def publish(self, messages: Sequence[Message]) -> Sequence[PublishResult]:
        """Store messages, or do what the tester asked for."""
        await self.before_publishing(messages)
        return [self._store(message) for message in messages]

    async def serve_queries(self, names: Sequence[str], answer: QueryHandler) -> None:
        """Answer what is asked by `ask`."""
        self._answers.update(dict.fromkeys(names, answer))

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Keep answers; while the broker is down they are lost."""
        if self.health.usable:
            self.replies += replies

    async def hint(self, loop: str, at: int) -> None:
        """Tell whoever hears; while the broker is down it is lost."""
        if self.health.usable:
            for heard in self._hears:
                heard(loop, at)

    async def subscribe_hints(self, heard: Callable[[str, int], None]) -> None:
        """Tell `heard` of every hint."""
        self._hears.append(heard)

    def _store(self, message: Message) -> PublishResult:
        if not self.health.usable:
            return PublishResult(PublishStatus.UNAVAILABLE, self.health.reason or "")
        if len(message.body) > self.features.max_message_bytes:
            return PublishResult(PublishStatus.REFUSED, f"larger than {self.features.max_message_bytes} bytes")
        if self.refuses(message):
            return PublishResult(PublishStatus.REFUSED, "refused")
        self._append(message)
        if self.loses_acknowledgement_of(message):
            return PublishResult(PublishStatus.UNAVAILABLE, "the acknowledgement was lost")
        return PUBLISHED

    def _append(self, message: Message) -> None:
        name = (message.address.kind, message.id)
        if self.features.deduplicates and name in self._ids:
            return
        self._ids.add(name)
        stored = self.dead_letters if message.address.kind is Kind.DEAD_LETTER else self.events
        stored.append(message)


class MemorySubscription:
    """A share of a `MemoryBroker`'s commands."""

    def __init__(self, queue: _Queue, settlements: Settlements) -> None:
        self._queue = queue
        self._settlements = settlements
        self._held: dict[Delivery, _Command] = {}
        self._closed = False

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands and take up to `limit`."""
        while not self._queue.commands and not self._closed:
            self._queue.changed.clear()
            await self._queue.changed.wait()
        if self._closed:
            return []
        return [self._deliver(command) for command in self._queue.take(limit)]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle for good."""
        self._settlements.acknowledged += self._settle(deliveries)

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Give back; `MemoryBroker.redeliver` says when the delay is over."""
        released = [self._held.pop(delivery) for delivery in deliveries]
        self._settlements.retried += [(command.position, delay) for command in released]

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle for good, as one that can't be handled."""
        self._settlements.terminated += self._settle(deliveries)

    async def close(self) -> None:
        """Hand out no more."""
        self._closed = True
        self._queue.changed.set()

    def _deliver(self, command: _Command) -> Delivery:
        command.attempts += 1
        delivery = Delivery(
            address=command.address,
            source=".".join(command.address),
            message_id=command.message_id,
            body=command.body,
            headers=dict(command.headers),
            position=command.position,
            attempt=command.attempts,
            handle=None,
        )
        self._held[delivery] = command
        return delivery

    def _settle(self, deliveries: Sequence[Delivery]) -> list[Position]:
        """Raise KeyError for a delivery that isn't held (any more)."""
        commands = [self._held.pop(delivery) for delivery in deliveries]
        for command in commands:
            command.settled = True
        positions = [command.position for command in commands]
        self._queue.remove(set(positions))
        return positions
