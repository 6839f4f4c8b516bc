"""The buffer of commands that have arrived and are not handed out yet."""

from collections import deque

from nats.aio.msg import Msg

from timer_service.core.broker import BATCH_BYTES


class Buffer:
    """Messages in order of arrival. A batch taken from the buffer is bounded in count and in bytes."""

    def __init__(self) -> None:
        self._messages: deque[Msg] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, message: Msg) -> None:
        """Add a message to the end."""
        size = len(message.data)
        for name, value in (message.headers or {}).items():
            size += len(name) + len(value)
        self._messages.append(message)
        self._sizes.append(size)
        self._bytes += size

    def fills_batch(self, limit: int) -> bool:
        """Return whether the buffer holds a full batch: `limit` messages or `BATCH_BYTES`."""
        return len(self._messages) >= limit or self._bytes >= BATCH_BYTES

    @property
    def replies(self) -> list[str]:
        """The reply subjects of the messages."""
        return [message.reply for message in self._messages]

    def take(self, limit: int, room: int = BATCH_BYTES) -> list[Msg]:
        """Remove and return up to `limit` messages that fit into `room` bytes.

        If the room is a whole batch, return at least one message of any size.
        """
        taken: list[Msg] = []
        any_size = room == BATCH_BYTES
        while self._messages and len(taken) < limit and ((any_size and not taken) or self._sizes[0] <= room):
            size = self._sizes.popleft()
            taken.append(self._messages.popleft())
            self._bytes -= size
            room -= size
        return taken
