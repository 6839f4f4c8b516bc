"""Which events a consumer has handled, so that a repeated event is not handled again."""

from typing import Any, Protocol

MOST_REMEMBERED = 100_000


class SeenStore(Protocol):
    """Marks of handled events. `consumer` is the name under which they are kept."""

    async def open(self) -> None:
        """Prepare the store."""

    async def close(self) -> None:
        """Release what the store uses."""

    async def has(self, consumer: str, event_id: str) -> bool:
        """Return whether an event is marked."""

    async def add(self, consumer: str, event_id: str) -> None:
        """Mark an event. Does nothing if it is marked."""

    async def add_in(self, connection: Any, consumer: str, event_id: str) -> bool:
        """Mark an event in the transaction of a connection. Returns False if it was marked before."""


class MemorySeen:
    """Remembers the last 100,000 events in memory. It forgets them when the process ends."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, str], None] = {}

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing. The same object can be opened again, with its marks."""

    async def has(self, consumer: str, event_id: str) -> bool:
        """Return whether an event is marked."""
        return (consumer, event_id) in self._marks

    async def add(self, consumer: str, event_id: str) -> None:
        """Mark an event, and forget the oldest mark if there are too many."""
        self._marks[consumer, event_id] = None
        if len(self._marks) > MOST_REMEMBERED:
            del self._marks[next(iter(self._marks))]

    async def add_in(self, connection: Any, consumer: str, event_id: str) -> bool:
        """Raise ValueError: memory is not part of a transaction."""
        del connection, consumer, event_id
        raise ValueError("seen must be a store in your database, because memory is not part of a transaction")
