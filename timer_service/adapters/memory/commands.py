"""The commands of the in-memory broker: the log, and the queue of those to deliver next."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from timer_service.core.values.message import Address, Position


@dataclass(slots=True)
class LoggedCommand:
    """One command in the log."""

    position: Position
    address: Address
    message_id: str
    body: bytes
    headers: dict[str, str]
    stored_at: int
    attempts: int = 0
    settled: bool = False

    @property
    def source(self) -> str:
        """Where the command came from, as its delivery names it."""
        return ".".join(self.address)

    @property
    def size(self) -> int:
        """See `core.broker.Delivery.size`."""
        headers = sum(len(f"{name}: {value}\r\n") for name, value in self.headers.items())
        return len(self.source) + headers + len(self.body)


class CommandQueue:
    """The commands to deliver next. All subscriptions share one queue."""

    def __init__(self) -> None:
        self.commands: list[LoggedCommand] = []
        self.changed = asyncio.Event()

    def put(self, commands: Sequence[LoggedCommand]) -> None:
        """Add commands to the end."""
        self.commands += commands
        self.changed.set()

    def put_first(self, commands: Sequence[LoggedCommand]) -> None:
        """Add commands to the front, in their order."""
        self.commands[:0] = commands
        self.changed.set()

    def take(self, limit: int, most_bytes: int) -> list[LoggedCommand]:
        """Remove and return up to `limit` commands of at most `most_bytes`, and at least one of any size."""
        sizes = accumulate(command.size for command in self.commands[:limit])
        count = max(1, sum(size <= most_bytes for size in sizes))
        taken = self.commands[:count]
        del self.commands[:count]
        return taken

    def remove(self, positions: Collection[Position]) -> None:
        """Remove the commands at these positions."""
        self.commands = [command for command in self.commands if command.position not in positions]
