"""The subscription of the in-memory broker, and what it settles."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from timer_service.adapters.memory.commands import CommandQueue, LoggedCommand
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position


@dataclass(slots=True)
class Settlements:
    """All settlements so far, in order."""

    acknowledged: list[Position] = field(default_factory=list)
    retried: list[tuple[Position, timedelta]] = field(default_factory=list)
    terminated: list[Position] = field(default_factory=list)


class MemorySubscription:
    """One subscriber of a `MemoryBroker`."""

    def __init__(self, queue: CommandQueue, settlements: Settlements, batch_bytes: int) -> None:
        self._queue = queue
        self._batch_bytes = batch_bytes
        self._settlements = settlements
        self._held: dict[Delivery, LoggedCommand] = {}
        self._closed = False
        self.health = HEALTHY

    async def next_batch(self, limit: int) -> Sequence[Delivery]:
        """Wait for commands. Return up to `limit` of them, or none if the subscription is closed."""
        while not self._queue.commands and not self._closed:
            self._queue.changed.clear()
            await self._queue.changed.wait()
        if self._closed:
            return []
        return [self._deliver(command) for command in self._queue.take(limit, self._batch_bytes)]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as handled."""
        self._settlements.acknowledged += self._settle(deliveries)

    async def retry(self, deliveries: Sequence[Delivery], delay: timedelta) -> None:
        """Return deliveries to the log. They come again when a test calls `MemoryBroker.redeliver`."""
        released = [self._held.pop(delivery) for delivery in deliveries]
        self._settlements.retried += [(command.position, delay) for command in released]

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries as never to be handled."""
        self._settlements.terminated += self._settle(deliveries)

    def stream_changed(self) -> None:
        """Do nothing: the epochs come from the test."""

    async def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Put deliveries at the front of the queue, in their order. Their attempts do not count."""
        commands = [self._held.pop(delivery) for delivery in deliveries]
        for command in commands:
            command.attempts -= 1
        self._queue.put_first(commands)

    async def close(self) -> None:
        """Stop delivering commands."""
        self._closed = True
        self._queue.changed.set()

    def _deliver(self, command: LoggedCommand) -> Delivery:
        command.attempts += 1
        delivery = Delivery(
            address=command.address,
            source=command.source,
            message_id=command.message_id,
            body=command.body,
            headers=dict(command.headers),
            position=command.position,
            attempt=command.attempts,
            handle=None,
            size=command.size,
            stored_at=command.stored_at,
            newest_epoch=command.position.epoch,
        )
        self._held[delivery] = command
        return delivery

    def _settle(self, deliveries: Sequence[Delivery]) -> list[Position]:
        """Return the positions. Raises KeyError if a delivery is not held."""
        commands = [self._held.pop(delivery) for delivery in deliveries]
        for command in commands:
            command.settled = True
        positions = [command.position for command in commands]
        self._queue.remove(set(positions))
        return positions
