"""The command log of the in-memory broker: a list."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from timer_service.core.ports.log import LogBatch, LogCursor, LogUnavailableError, Opening
from timer_service.core.values.address import Address
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import MESSAGE_ID, Headers, RawCommand


def headers_of(headers: Mapping[str, str]) -> Headers:
    """Return the headers in a dictionary."""
    lines = (f"{name}: {value}" for name, value in headers.items())
    return Headers("\r\n".join(["NATS/1.0", *lines]).encode() if headers else b"")


@dataclass(slots=True)
class StoredLog:
    """The commands as the broker stores them. Tests change it as an operator, or a fault, changes a real one."""

    epoch: int = 1
    """Which log it is. A log that was recreated has another one."""
    commands: list[RawCommand] = field(default_factory=list)
    last_sequence: int = 0
    owner: str | None = None
    """The database to which it belongs."""
    away: str | None = None
    """Why the log cannot be read; None: it can."""
    replaced: int = 0
    """How often the log was recreated or rolled back. Readers must open it again then."""
    leaves: int | None = None
    """Bodies with more bytes are left in the log; None: none are."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when commands were stored, or the log is another one."""

    def append(
        self,
        address: Address,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        stored_at: int | None = None,
    ) -> Position:
        """Store a command. `stored_at`, in nanoseconds: by default, the commands follow each other by one."""
        self.last_sequence += 1
        position = Position(self.epoch, self.last_sequence)
        source = ".".join(filter(None, address))
        block = headers_of({**({MESSAGE_ID: message_id} if message_id else {}), **(headers or {})})
        size = len(source) + len(block.block) + len(body)
        at = self.last_sequence if stored_at is None else stored_at
        self.commands.append(RawCommand(address, source, body, block, position, size, at))
        self.changed.set()
        return position

    def recreate(self, epoch: int) -> None:
        """Replace the log by an empty one. Its sequence begins at 1."""
        self.epoch, self.last_sequence = epoch, 0
        self.replaced += 1
        self.commands.clear()
        self.changed.set()

    def roll_back(self, sequence: int) -> None:
        """Forget the commands behind a sequence, as if an older copy of the log was restored."""
        self.commands = [each for each in self.commands if each.position.sequence <= sequence]
        self.last_sequence = sequence
        self.replaced += 1
        self.changed.set()

    def remove(self, *positions: Position) -> None:
        """Remove commands, as if they had expired."""
        self.commands = [each for each in self.commands if each.position not in positions]

    def find(self, sequence: int) -> RawCommand | None:
        """Return the command with a sequence; None if there is none."""
        return next((each for each in self.commands if each.position.sequence == sequence), None)


class MemoryLog:
    """`core.ports.log.CommandLog` on a list. Each reader has its own."""

    def __init__(self, stored: StoredLog, overlap_ns: int = 0) -> None:
        """`overlap_ns`: how much earlier than the last command another log is read."""
        self._stored = stored
        self._overlap_ns = overlap_ns
        self._cursor: LogCursor | None = None
        self._opened = 0
        """How often the log had been replaced when it was opened."""
        self._closed = False

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        """Begin to read behind a cursor."""
        self._check()
        stored = self._stored
        stored.owner = stored.owner or owner
        self._opened = stored.replaced
        opening = self._find(cursor)
        self._cursor = opening.cursor
        return opening

    async def read(self, limit: int, most_bytes: int, seconds: float) -> LogBatch:
        """Return the next commands."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._stored.changed.clear()
                    if self._closed:
                        return LogBatch((), 0)
                    if (batch := self._take(limit, most_bytes)).commands:
                        return batch
                    await self._stored.changed.wait()
        except TimeoutError:
            return LogBatch((), 0)

    async def body(self, raw: RawCommand) -> bytes | None:
        """Return the body of a command that was left in the log."""
        self._check()
        found = self._stored.find(raw.position.sequence)
        return found.body if found is not None and found.stored_at == raw.stored_at else None

    async def end(self) -> LogCursor:
        """Return a cursor at the last command."""
        self._check()
        last = self._stored.commands[-1] if self._stored.commands else None
        name = str(self._stored.epoch)
        return LogCursor(name, 0) if last is None else LogCursor(name, 0, last.position.sequence, last.stored_at)

    async def has_others(self, tenant: str) -> bool:
        """Return whether the log has commands of other tenants; True if it cannot be read."""
        return self._stored.away is not None or any(each.address.tenant != tenant for each in self._stored.commands)

    async def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._stored.changed.set()

    def _check(self) -> None:
        """Raise `LogUnavailableError` while the log cannot be read."""
        if self._stored.away is not None:
            raise LogUnavailableError(self._stored.away)

    def _find(self, cursor: LogCursor | None) -> Opening:
        """Return where to read: at the first command, behind the cursor, or in another log from the cursor's time."""
        stored = self._stored
        name = str(stored.epoch)
        if cursor is None:
            first = stored.commands[0].position.sequence if stored.commands else stored.last_sequence + 1
            return Opening(LogCursor(name, stored.epoch, first - 1), unread=len(stored.commands))
        found = stored.find(cursor.sequence)
        is_same = cursor.log == name if found is None else found.stored_at == cursor.stored_at
        if stored.last_sequence < cursor.sequence or not is_same:
            moved = LogCursor(name, max(cursor.epoch + 1, stored.epoch), 0, cursor.stored_at)
            return Opening(moved, is_other=True, unread=len(stored.commands))
        later = [each for each in stored.commands if each.position.sequence > cursor.sequence]
        was_read = cursor.sequence > 0 or cursor.stored_at == 0  # else the cursor has only a time
        removed = stored.last_sequence - cursor.sequence - len(later) if was_read else 0
        return Opening(cursor._replace(log=name), removed=removed, unread=len(later))

    def _take(self, limit: int, most_bytes: int) -> LogBatch:
        """Return the commands behind the cursor, and move it."""
        self._check()
        cursor = self._cursor
        if cursor is None or self._stored.replaced != self._opened:
            raise LogUnavailableError("the log is another one")
        earliest = cursor.stored_at - self._overlap_ns if cursor.sequence == 0 else -1
        later = [
            self._read(each, Position(cursor.epoch, each.position.sequence))
            for each in self._stored.commands
            if each.position.sequence > cursor.sequence and each.stored_at >= earliest
        ]
        sizes = list(accumulate(each.held_bytes for each in later[:limit]))
        count = max(1, sum(size <= most_bytes for size in sizes))
        taken = later[:count]
        if taken:
            last = taken[-1]
            self._cursor = cursor._replace(sequence=last.position.sequence, stored_at=last.stored_at)
        return LogBatch(taken, len(later) - len(taken))

    def _read(self, stored: RawCommand, position: Position) -> RawCommand:
        """Return a stored command as it is read."""
        if (leaves := self._stored.leaves) is None or len(stored.body) <= leaves:
            return replace(stored, position=position)
        return replace(stored, position=position, body=b"", left_bytes=len(stored.body))
