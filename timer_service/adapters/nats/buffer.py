"""Commands that have arrived and wait to be handed out."""

from collections import deque

from nats.aio.msg import Msg

from timer_service.core.broker import BATCH_BYTES


class Buffer:
    """Messages in the order they arrived, handed out in batches that are bounded by count and bytes."""

    def __init__(self) -> None:
        self._messages: deque[Msg] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def append(self, message: Msg) -> None:
        """Keep a message that arrived."""
        size = len(message.data)
        for name, value in (message.headers or {}).items():
            size += len(name) + len(value)
        self._messages.append(message)
        self._sizes.append(size)
        self._bytes += size

    def fills_batch(self, limit: int) -> bool:
        """Return whether there is as much as a batch may have."""
        return len(self._messages) >= limit or self._bytes >= BATCH_BYTES

    def take(self, limit: int) -> list[Msg]:
        """Take a batch out: up to `limit`, as many as fit, at least one of what there is."""
        taken: list[Msg] = []
        room = BATCH_BYTES
        while self._messages and len(taken) < limit and (not taken or self._sizes[0] <= room):
            size = self._sizes.popleft()
            taken.append(self._messages.popleft())
            self._bytes -= size
            room -= size
        return taken
