"""The buffer of commands that have arrived and are not handed out yet."""

from collections import deque
from typing import NamedTuple

from nats.aio.msg import Msg

from timer_service.adapters.nats.stored import Receipt
from timer_service.core.broker import BATCH_BYTES
from timer_service.core.epochs import StoredCommand


class _Arrived(NamedTuple):
    message: Msg
    receipt: Receipt
    size: int


class Buffer:
    """Messages in order of arrival. A batch taken from the buffer is bounded in count and in bytes."""

    def __init__(self) -> None:
        self._arrived: deque[_Arrived] = deque()
        self._bytes = 0
        self.newest: StoredCommand | None = None
        """The newest command that was ever added."""
        self.last_delivery = 0
        """The number of the last delivery that was added."""

    def __bool__(self) -> bool:
        return bool(self._arrived)

    def __len__(self) -> int:
        return len(self._arrived)

    def append(self, message: Msg, receipt: Receipt) -> None:
        """Add a message to the end."""
        size = len(message.data)
        for name, value in (message.headers or {}).items():
            size += len(name) + len(value)
        self._arrived.append(_Arrived(message, receipt, size))
        self._bytes += size
        self.last_delivery = receipt.delivery
        if self.newest is None or receipt.sequence > self.newest.sequence:
            self.newest = StoredCommand(receipt.sequence, receipt.stored_at)

    def fills_batch(self, limit: int) -> bool:
        """Return whether the buffer holds a full batch: `limit` messages or `BATCH_BYTES`."""
        return len(self._arrived) >= limit or self._bytes >= BATCH_BYTES

    def take(self, limit: int) -> list[tuple[Msg, Receipt]]:
        """Remove and return up to `limit` messages that fit into a batch, and at least one of any size."""
        taken: list[tuple[Msg, Receipt]] = []
        room = BATCH_BYTES
        while self._arrived and len(taken) < limit and (not taken or self._arrived[0].size <= room):
            message, receipt, size = self._arrived.popleft()
            taken.append((message, receipt))
            self._bytes -= size
            room -= size
        return taken
