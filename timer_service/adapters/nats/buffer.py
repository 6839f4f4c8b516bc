"""The buffer of commands that have arrived and are not handed out yet."""

from collections import deque
from collections.abc import Callable

from timer_service.adapters.nats.lost_answers import MOST_LOST
from timer_service.adapters.nats.stored import Receipt, StoredMessage
from timer_service.core.intake.epochs import StoredCommand

_OTHERS_BYTES = 64 * 1024
"""How many bytes of small messages may overtake others."""


class Buffer:
    """Messages in order of arrival. A batch taken from the buffer is bounded in count and in bytes."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._messages: deque[StoredMessage] = deque()
        self._bytes = 0
        self._newest: Receipt | None = None
        self.waiting = 0
        """How many commands the consumer had not delivered yet when it delivered the last message that was added."""
        self.last_delivery = 0
        """The number of the last delivery that was added."""
        self.arrived: deque[int] = deque(maxlen=MOST_LOST)
        """The sequences of the last messages that were added. They may be taken and settled."""

    def __bool__(self) -> bool:
        return bool(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def newest(self) -> StoredCommand | None:
        """The newest command that was ever added."""
        return self._newest and StoredCommand(self._newest.sequence, self._newest.stored_at)

    @property
    def first(self) -> StoredMessage:
        """The message that is taken next. There must be one."""
        return self._messages[0]

    def append(self, message: StoredMessage) -> None:
        """Add a message to the end."""
        self._messages.append(message)
        self._bytes += message.size
        receipt = message.receipt
        self.waiting = receipt.waiting
        self.last_delivery = receipt.delivery
        self.arrived.append(receipt.sequence)
        if self._newest is None or receipt.sequence > self._newest.sequence:
            self._newest = receipt

    def fills_batch(self, limit: int) -> bool:
        """Return whether the buffer holds a full batch: `limit` messages or the bytes of a batch."""
        return len(self._messages) >= limit or self._bytes >= self._batch_bytes

    @property
    def replies(self) -> list[str]:
        """The reply subjects of the messages."""
        return [message.reply for message in self._messages]

    def take(self, limit: int, *, used: int = 0) -> list[StoredMessage]:
        """Remove and return up to `limit` messages that fit into a batch of which `used` bytes are used.

        If none is used, return at least one message of any size.
        """
        taken: list[StoredMessage] = []
        room = self._batch_bytes - used
        while self._messages and len(taken) < limit and (not (taken or used) or self._messages[0].size <= room):
            taken.append(message := self._messages.popleft())
            self._bytes -= message.size
            room -= message.size
        return taken

    def take_others(
        self,
        limit: int,
        tenant_of: Callable[[StoredMessage], str],
        waits: Callable[[str], bool],
        *,
        first_waits: bool = False,
    ) -> list[StoredMessage]:
        """Remove and return up to `limit` messages that may overtake those that did not fit into the batch.

        They have 64 KiB together. None overtakes another one of its tenant, and those of a tenant that `waits` stay.
        `first_waits`: the first message did not fit.
        """
        taken: list[StoredMessage] = []
        kept: deque[StoredMessage] = deque()
        overtaken = {tenant_of(self._messages[0])} if first_waits and self._messages else set[str]()
        room = _OTHERS_BYTES
        for message in self._messages if limit else ():
            tenant = tenant_of(message)
            if len(taken) == limit or message.size > room or tenant in overtaken or waits(tenant):
                overtaken.add(tenant)
                kept.append(message)
            else:
                taken.append(message)
                room -= message.size
        if taken:
            self._messages = kept
            self._bytes -= _OTHERS_BYTES - room
        return taken
