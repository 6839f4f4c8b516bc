"""The command log on a stream of RabbitMQ.

The sequence of a command is its offset and 1. Offsets have gaps, as the broker counts its own entries too.

The broker does not tell a stream from another one with the same name. So this adapter stores a number in the stream by
which it recognizes it, as an offset of a consumer, which the broker deletes with the stream. A stream that was rolled
back still has it: then the command at the cursor is missing, or was stored at another time.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta

from timer_service.adapters.rabbitmq.commands import is_of, read_command
from timer_service.adapters.rabbitmq.names import Names
from timer_service.adapters.rabbitmq.server import Server
from timer_service.adapters.rabbitmq.stream import ERRORS, FIRST, LAST, Chunk, StreamConnection, at_offset, at_time
from timer_service.core.ports.log import LogBatch, LogCursor, LogUnavailableError, Opening
from timer_service.core.ports.turns import Turns
from timer_service.core.values.address import Kind
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import RawCommand
from timer_service.rabbit_client import reason_of

log = logging.getLogger(__name__)

_MARKER = "timer-service.log"
_MARKER_BASE = 1 << 62
"""A marker is greater than every offset: the broker forgets those of messages that it has removed."""
_MOST_CHUNKS = 64
_BYTES_PER_TURN = 256 * 1024
_LOOK_SECONDS = 0.5
"""How old the known end of the stream may be."""
_OTHERS_SECONDS = 0.05
_OWN_ENTRIES = 16
"""A gap of so many offsets can be entries of the broker."""


class RabbitLog:
    """`core.ports.log.CommandLog` on the stream of commands."""

    def __init__(
        self, server: Server, names: Names, overlap: timedelta, claim: Callable[[str], Awaitable[None]]
    ) -> None:
        """`overlap`: how much earlier than the last command another log is read.

        `claim` claims the log for a database. It raises `StartError` if the log belongs to another one.
        """
        self._server = server
        self._names = names
        self._name = names.stream(Kind.COMMAND)
        self._overlap_ns = overlap // timedelta(microseconds=1) * 1000
        self._claim = claim
        self._connection: StreamConnection | None = None
        self._arrived = asyncio.Event()
        self._buffer: deque[tuple[int, int, bytes]] = deque()
        """The offset, the time and the bytes of each message that was not read yet."""
        self._buffered = 0
        """Their bytes."""
        self._next = 0
        """The first offset that was not received."""
        self._end, self._looked_at = 0, 0.0
        """The offset behind the last message, and when it was looked for."""
        self._only: tuple[str, int] = "", 0
        """A tenant, and up to which offset all commands that were not read are of this tenant."""
        self._asked, self._chunk_bytes = 0, 1
        """How many chunks the broker may still send, and the size of the last one."""
        self._most_bytes = 1
        """The bytes of a batch, as the reader last said."""
        self._epoch = 0
        self._broken: str | None = "it was not opened yet"
        self._closed = False

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        """Begin to read behind a cursor. See `CommandLog`."""
        try:
            await self._disconnect()
            await self._claim(owner)
            connection = await self._connect()
            opening = await self._find_opening(connection, cursor)
            if not await connection.is_bound_to(exchange := self._names.exchange(Kind.COMMAND)):
                raise StartError(f"stream {self._name} gets no commands: bind it to exchange {exchange} with the key #")
            await self._follow(connection, opening)
        except ERRORS as error:
            raise LogUnavailableError(self._text(error)) from error
        self._epoch, self._broken, self._only = opening.cursor.epoch, connection.lost, ("", 0)
        return opening

    async def read(self, limit: int, most_bytes: int, seconds: float) -> LogBatch:
        """Return the next commands. See `CommandLog`."""
        self._most_bytes, until = most_bytes, time.monotonic() + seconds
        while not self._closed:
            if self._broken is not None or self._connection is None:
                raise LogUnavailableError(self._broken)
            if self._buffer:
                commands = await self._take(limit, most_bytes)
                self._ask_more()
                behind = await self._count_behind(self._connection, commands[-1].position.sequence)
                return LogBatch(commands, behind)
            self._ask_more()
            self._arrived.clear()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await self._arrived.wait()
            except TimeoutError:
                break
        return LogBatch((), 0)

    async def body(self, raw: RawCommand) -> bytes | None:
        """Return the body of a command. None was left in the log."""
        return raw.body

    async def end(self) -> LogCursor:
        """Return a cursor at the last command. See `CommandLog`."""
        try:
            connection = self._connection
            if connection is None or connection.lost is not None:
                connection = await self._connect()
            identity, last = await self._identity(connection), await connection.look(LAST)
        except ERRORS as error:
            raise LogUnavailableError(self._text(error)) from error
        return LogCursor(identity, 0) if last is None else LogCursor(identity, 0, last.end, last.stored_at)

    async def has_others(self, tenant: str) -> bool:
        """Return whether there are commands of other tenants behind what was read. See `CommandLog`.

        A stream does not say whose commands it has, so the chunks behind are looked through, for 50 ms. The next call
        goes on where this one has ended. Until all are known, there may be others.
        """
        first = self._buffer[0][0] if self._buffer else self._next
        known, known_until = self._only
        at = max(first, known_until) if known == tenant else first
        until = time.monotonic() + _OTHERS_SECONDS
        try:
            while self._connection is not None and time.monotonic() < until:
                chunk = await self._connection.look(at_offset(at))
                if chunk is None:
                    return False
                if not all(is_of(stored, tenant) for stored in chunk.messages[max(at - chunk.first, 0) :]):
                    return True
                self._only = tenant, (at := chunk.end)
        except ERRORS:
            pass  # the next `read` says it
        return True

    async def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._arrived.set()
        await self._disconnect()

    async def _connect(self) -> StreamConnection:
        """Connect for reading, in place of an earlier connection."""
        await self._disconnect()
        connection = await StreamConnection.open(self._server, self._name)
        connection.on_lost = self._break
        self._connection = connection
        return connection

    async def _disconnect(self) -> None:
        """Forget what was received, and disconnect."""
        self._break("it is being opened")
        self._buffer.clear()
        self._buffered = 0
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _identity(self, connection: StreamConnection) -> str:
        """Return the identity of the stream. It is the time of the first look at the stream, in Unix microseconds."""
        if (found := await connection.marker(_MARKER)) is None:
            connection.set_marker(_MARKER, _MARKER_BASE + time.time_ns() // 1000)
            if (found := await connection.marker(_MARKER)) is None:
                raise PermissionError(f"the user may not write to stream {self._name}")
        return str(found - _MARKER_BASE)

    async def _find_opening(self, connection: StreamConnection, cursor: LogCursor | None) -> Opening:
        """Return where to read in the stream: from its beginning without a cursor, else behind the cursor.

        If the stream is another log than that of the cursor, or was rolled back, read from the time of the cursor,
        under a greater epoch.
        """
        identity = await self._identity(connection)
        first, last = await connection.look(FIRST), await connection.look(LAST)
        begin, self._end = (first.first, last.end) if first and last else (1, 1)  # 0 is the identity
        self._looked_at = time.monotonic()
        created_ms = int(identity) // 1000
        if cursor is None:
            return Opening(LogCursor(identity, created_ms, begin), unread=self._end - begin)
        has_command, is_removed = await self._has_command_of(connection, cursor, identity, begin)
        if not has_command:
            moved = LogCursor(identity, max(cursor.epoch + 1, created_ms), 0, cursor.stored_at)
            return Opening(moved, is_other=True, unread=self._end - begin)
        removed = begin - cursor.sequence if is_removed else 0
        return Opening(cursor._replace(log=identity), removed=removed, unread=self._end - max(begin, cursor.sequence))

    async def _has_command_of(
        self, connection: StreamConnection, cursor: LogCursor, identity: str, begin: int
    ) -> tuple[bool, bool]:
        """Return whether the stream has the command of a cursor, or had it, and whether it has removed it."""
        if cursor.sequence > self._end:
            return False, False
        if cursor.stored_at == 0 or cursor.sequence == 0:  # there is no command to compare
            return cursor.log == identity, cursor.stored_at == 0 and cursor.sequence < begin
        if cursor.sequence <= begin:
            return cursor.log == identity, cursor.sequence < begin
        found = await connection.look(at_offset(cursor.sequence - 1))
        return found is not None and found.stored_at == cursor.stored_at, False

    async def _follow(self, connection: StreamConnection, opening: Opening) -> None:
        """Let the broker send what is behind the cursor of an opening, a chunk first.

        In another log, the times of two brokers' clocks are compared. So it begins earlier rather than later.
        """
        cursor = opening.cursor
        self._asked, self._next = 1, cursor.sequence + opening.removed
        if cursor.sequence:
            where = at_offset(cursor.sequence)
        else:
            where = at_time(max(cursor.stored_at - self._overlap_ns, 0)) if cursor.stored_at else FIRST
        await connection.follow(where, 1, self._receive)

    def _receive(self, chunk: Chunk) -> None:
        """Buffer the messages of a chunk."""
        if self._next and chunk.first > self._next + _OWN_ENTRIES:
            about = {"count": chunk.first - self._next}
            log.error("commands were removed from the log before they were read", extra=about)
        for offset, stored in enumerate(chunk.messages, chunk.first):
            if offset >= self._next:  # a chunk is sent whole
                self._buffer.append((offset, chunk.stored_at, stored))
                self._buffered += len(stored)
        self._next, self._end = chunk.end, max(self._end, chunk.end)
        self._asked -= 1
        self._chunk_bytes = max(1, sum(map(len, chunk.messages)))
        self._ask_more()
        self._arrived.set()

    def _ask_more(self) -> None:
        """Ask for about another batch if less than a batch is buffered. The broker sends whole chunks."""
        wanted = max(1, min(_MOST_CHUNKS, self._most_bytes // self._chunk_bytes))
        if self._connection is not None and self._buffered < self._most_bytes and self._asked <= wanted // 2:
            self._connection.ask_more(wanted - self._asked)
            self._asked = wanted

    async def _take(self, limit: int, most_bytes: int) -> list[RawCommand]:
        """Take a batch from the buffer."""
        commands: list[RawCommand] = []
        turns = Turns(_BYTES_PER_TURN)
        left = most_bytes
        while self._buffer and len(commands) < limit:
            offset, stored_at, stored = self._buffer[0]
            await turns.take(len(stored))
            command = read_command(stored, self._names, Position(self._epoch, offset + 1), stored_at)
            if (left := left - command.size) < 0 and commands:
                break
            commands.append(command)
            self._buffer.popleft()
            self._buffered -= len(stored)
        return commands

    async def _count_behind(self, connection: StreamConnection, sequence: int) -> int:
        """Return how many commands are behind a sequence. Look for the end of the stream if much can be there."""
        if self._buffer and time.monotonic() > self._looked_at + _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            try:
                last = await connection.look(LAST)
            except ERRORS as error:
                self._break(self._text(error))
            else:
                self._end = self._end if last is None else max(self._end, last.end)
        return max(self._end - sequence, len(self._buffer))

    def _break(self, reason: str) -> None:
        """Read nothing more before the log was opened again."""
        self._broken = self._broken or reason
        self._arrived.set()

    def _text(self, error: BaseException) -> str:
        """Return the reason why the log cannot be read, for an operator."""
        return f"stream {self._name} cannot be read: {reason_of(error)}"
