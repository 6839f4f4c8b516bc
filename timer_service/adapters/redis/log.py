"""The command log on Redis: a stream of all tenants, and streams of tenants whose commands are moved into it.

The number of an entry in the stream (`entries-added`) is the sequence of a command, and its id is the place.
"""

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from redis.exceptions import ResponseError

from timer_service.adapters.redis.connection import Connection
from timer_service.adapters.redis.streams import StreamUpkeep
from timer_service.core.ports.log import LogBatch, LogCursor, LogUnavailableError, Opening
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import MESSAGE_ID, Headers, RawCommand, decode_text
from timer_service.redis_client import ERRORS, Keys, reason_of

log = logging.getLogger(__name__)

_BLOCK_SECONDS = 2
_MOST_AT_ONCE = 200
"""The server counts entries, not bytes. So few are asked for at a time, and fewer if they are large."""
_FIRST_AT_ONCE = 8
_GROWTH = 4
_MOVED_AT_ONCE = 16
_COMPARE_SECONDS = 1
_PAGE = 1000
_LOOK_AT_ONCE = 1000
"""How many commands the server looks at in one call. That takes about a millisecond."""
_MOST_LOOKS = 1000
_MS_DIGITS = 15
_LAST_MS = 7_258_118_400_000
"""The year 2200. An id with a later time was chosen by its sender."""
_NS_PER_MS = 1_000_000
_STEP_NS = 10_000
_NO_HEADERS = Headers(b"")
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
_FIELDS = {b"tenant", b"type", b"body", b"id", b"reply-to", b"stored-at"}
_HEADER_OF = {b"id": MESSAGE_ID.encode(), b"reply-to": REPLY_TO.encode()}
_OTHER_DATABASE = (
    "a service with another database handles the commands of {stream}. If both shall run, set another "
    "TIMER_SUBJECT_PREFIX for one of them. If this database replaces the other one, stop the other service and run "
    "`redis-cli HDEL {log} database`: then this service handles every command that the stream still has"
)
# Moves the oldest entries of tenants' streams to the stream of all, with the tenant of the key. A script is atomic, so
# an entry is in one of both. `unpack` takes 8,000 values, so an entry keeps its first 3,000 fields.
_MOVE = """
local moved = 0
for i = 2, #KEYS do
  for _, entry in ipairs(redis.call('XRANGE', KEYS[i], '-', '+', 'COUNT', ARGV[1])) do
    local fields = {'tenant', ARGV[i], 'stored-at', string.match(entry[1], '^%d+')}
    for j = 1, math.min(#entry[2], 6000), 2 do
      if entry[2][j] ~= 'tenant' and entry[2][j] ~= 'stored-at' then
        fields[#fields + 1] = entry[2][j]
        fields[#fields + 1] = entry[2][j + 1]
      end
    end
    redis.call('XADD', KEYS[1], '*', unpack(fields))
    redis.call('XDEL', KEYS[i], entry[1])
    moved = moved + 1
  end
end
return moved
"""

# Looks for a command of another tenant among the next ones. Returns whether there is one, how many it looked at, and
# the last of them.
_FIND_OTHER = """
local last, count = ARGV[1], 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', ARGV[3])) do
  for j = 1, #entry[2], 2 do
    if entry[2][j] == 'tenant' and entry[2][j + 1] ~= ARGV[2] then
      return {1, count, last}
    end
  end
  last, count = entry[1], count + 1
end
return {0, count, last}
"""

Fields = Mapping[bytes, bytes]


class RedisLog:
    """`core.ports.log.CommandLog` on streams of Redis."""

    def __init__(self, connection: Connection, keys: Keys, streams: StreamUpkeep, overlap_ns: int) -> None:
        """`overlap_ns`: how much earlier than the last command another log is read."""
        self._keys = keys
        self._stream = keys.stream(Kind.COMMAND)
        self._overlap_ns = overlap_ns
        self._connects = 0
        self._client = connection.client
        self._reader = connection.new_client("timer-service-log", self._count_connect)
        """Has one connection, by which commands are read. What was lost with it shows in another number of connects."""
        self._move = self._client.register_script(_MOVE)
        self._find_other = self._client.register_script(_FIND_OTHER)
        self._only: tuple[str, str] = "", ""
        """A tenant, and up to which command there are only those of this tenant behind what was read."""
        self._streams = streams
        self._buffer: deque[RawCommand] = deque()
        self._at_once = _MOST_AT_ONCE
        self._opened_in = 0
        """How many connections had been made when the log was opened. One more: it may be another server."""
        self._place = ""
        """The id of the last command that was handed over."""
        self._epoch = 0
        self._sequence = 0
        self._behind = 0
        self._compared_at = 0.0
        """When the number of commands that were read was last compared with those that the server has stored."""
        self._compared = 0
        """How many had been read then."""
        self._closed = False
        self._broken: str | None = "it was not opened yet"

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        """Begin to read behind a cursor. See `CommandLog`."""
        self._broken = "it is being opened"
        try:
            await self._reader.ping()
            self._opened_in = self._connects
            identity = await self._streams.identify(owner)
            if identity.database != owner:
                raise StartError(_OTHER_DATABASE.format(stream=self._stream, log=self._keys.log))
            opening = await self._find_opening(cursor, identity.log, identity.created)
        except ERRORS as error:
            raise LogUnavailableError(reason_of(error)) from error
        self._buffer.clear()
        self._at_once = _FIRST_AT_ONCE
        self._epoch, self._sequence = opening.cursor.epoch, opening.cursor.sequence
        self._place = self._streams.handled_until = opening.cursor.place
        self._broken = None
        return opening

    async def read(self, limit: int, most_bytes: int, seconds: float) -> LogBatch:
        """Return the next commands. See `CommandLog`."""
        until = time.monotonic() + seconds
        self._streams.handled_until = self._place  # the caller has stored in the database what it got before
        try:
            while not self._closed:
                await self._fill(limit, most_bytes, min(until - time.monotonic(), _BLOCK_SECONDS))
                if self._buffer:
                    return self._take(limit, most_bytes)
                if time.monotonic() >= until:
                    break
        except ERRORS as error:
            if not self._closed:
                self._broken = reason_of(error)
                raise LogUnavailableError(self._broken) from error
        return LogBatch((), 0)

    async def body(self, raw: RawCommand) -> bytes | None:
        """Return the body: none is left in the log."""
        return raw.body

    async def end(self) -> LogCursor:
        """Return a cursor at the last command, also of the tenants' own streams. See `CommandLog`."""
        try:
            while await self._move_commands():
                pass
            name = await self._streams.log_id()
            info = await self._info()
            last = await self._client.xrevrange(self._stream, info["last-generated-id"], count=1)
        except ERRORS as error:
            raise LogUnavailableError(reason_of(error)) from error
        cursor = LogCursor(name, 0, info["entries-added"])
        if not last:
            return cursor
        ((entry, fields),) = last
        place = decode_text(entry)
        return cursor._replace(stored_at=_stored_at(fields, place), place=place)

    async def has_others(self, tenant: str) -> bool:
        """Return whether there are commands of other tenants behind what was read. See `CommandLog`.

        A stream does not say whose commands it has, so the server looks through them, page by page. The next call goes
        on where this one has ended.
        """
        known, last = self._only
        if known != tenant or _order(last) < _order(self._place or "0-0"):
            last = self._place or "0-0"
        page = _LOOK_AT_ONCE if self._at_once == _MOST_AT_ONCE else 1
        try:
            for _ in range(_MOST_LOOKS):
                is_found, count, end = await self._find_other([self._stream], [last, tenant, page])
                last = decode_text(end)
                self._only = tenant, last
                if is_found or count < page:
                    return bool(is_found)
        except ERRORS:
            pass
        return True

    async def close(self) -> None:
        """Stop reading. The connection is closed, so a `read` that waits ends at once."""
        self._closed = True
        await self._reader.aclose()

    def _count_connect(self) -> None:
        self._connects += 1

    async def _info(self) -> Mapping[str, Any]:
        """Return what the server says about the stream. One that was deleted is empty."""
        try:
            found: dict[str, Any] = await self._client.xinfo_stream(self._stream)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {"length": 0, "entries-added": 0, "last-generated-id": "0-0"}
        return {**found, "last-generated-id": decode_text(found["last-generated-id"])}

    async def _find_opening(self, cursor: LogCursor | None, name: str, created: int) -> Opening:
        """Return where to read: from the beginning without a cursor, else behind the cursor.

        If it is another stream, or was rolled back, read from the time of the cursor, under a greater epoch.
        """
        info = await self._info()
        added, length, last = info["entries-added"], info["length"], info["last-generated-id"]
        if cursor is None:
            return Opening(LogCursor(name, created, added - length), unread=length)
        if not await self._has_command_of(cursor, name, info):
            begins = _place_of(max(cursor.stored_at - self._overlap_ns, 0))
            unread = await self._count(begins, last)
            before = begins != "0-0" and await self._client.xrevrange(self._stream, f"({begins}", count=1)
            place = decode_text(before[0][0]) if before else ""
            moved = LogCursor(name, max(cursor.epoch + 1, created), added - unread, cursor.stored_at, place)
            return Opening(moved, is_other=True, unread=unread)
        if (unread := added - cursor.sequence) <= length:
            return Opening(cursor, unread=unread)
        unread = await self._count(f"({cursor.place}" if cursor.place else "-", last)
        removed = max(added - unread - cursor.sequence, 0)
        return Opening(cursor._replace(sequence=cursor.sequence + removed), removed=removed, unread=unread)

    async def _has_command_of(self, cursor: LogCursor, name: str, info: Mapping[str, Any]) -> bool:
        """Return whether the stream has the command of a cursor, or had it and has removed it."""
        if cursor.log != name:
            return False
        if not cursor.place or await self._client.xrange(self._stream, cursor.place, cursor.place):
            return True
        if info["entries-added"] < cursor.sequence or _order(info["last-generated-id"]) < _order(cursor.place):
            return False
        oldest = await self._client.xrange(self._stream, count=1)
        return not oldest or _order(decode_text(oldest[0][0])) > _order(cursor.place)

    async def _count(self, begins: str, last: str) -> int:
        """Return how many entries there are from an id to another."""
        count = 0
        while page := await self._client.xrange(self._stream, begins, last, count=_PAGE):
            count += len(page)
            begins = f"({decode_text(page[-1][0])}"
        return count

    async def _fill(self, limit: int, most_bytes: int, seconds: float) -> None:
        """Read entries into the buffer until it has a batch or the stream has no more. Wait for the first entry."""
        while True:
            if self._streams.log_is_other:
                self._broken = "the commands were deleted, as by FLUSHALL"
            if self._broken is not None:
                raise LogUnavailableError(self._broken)
            held = sum(each.size for each in self._buffer)
            if len(self._buffer) >= limit or held >= most_bytes:
                return
            await self._move_commands()
            waits = None if self._buffer else max(int(seconds * 1000), 1)
            asked = min(limit, self._at_once)
            entries = await self._read_entries(asked, waits)
            if self._connects != self._opened_in:
                self._broken = "the connection to the Redis server was lost"
                continue
            if entries:
                self._add(entries)
                fitting = max(most_bytes // max(each.size for each in self._buffer), 1)
                self._at_once = min(fitting, _GROWTH * self._at_once, _MOST_AT_ONCE)
            if len(entries) < asked:
                self._behind = 0
                if self._compared != self._sequence and time.monotonic() > self._compared_at + _COMPARE_SECONDS:
                    await self._compare()
                return
            self._behind = max((await self._info())["entries-added"] - self._sequence, 0)

    async def _compare(self) -> None:
        """Find out whether commands were removed that were not read: the server has stored more than were read."""
        info = await self._info()
        self._compared, self._compared_at = self._sequence, time.monotonic()
        if info["last-generated-id"] == self._last_place and info["entries-added"] > self._sequence:
            self._broken = "commands were removed before they were read"

    @property
    def _last_place(self) -> str:
        """The id of the last entry that was read from the server; empty if none was."""
        return self._buffer[-1].place if self._buffer else self._place

    async def _read_entries(self, count: int, block: int | None) -> Sequence[tuple[bytes, Fields]]:
        """Return the next entries. Wait `block` ms for them, or for one of a tenant's own stream; None: do not wait."""
        streams = {self._stream: self._last_place or "0-0"}
        if block is not None and self._streams.tenants:  # only to know that there are some: they are moved before
            streams |= {self._keys.stream(Kind.COMMAND, tenant): "0-0" for tenant in self._streams.tenants}
            count = 1
        found = await self._reader.xread(streams, count=count, block=block)
        return next((entries for name, entries in found or () if name == self._stream.encode()), ())

    async def _move_commands(self) -> bool:
        """Move commands of the tenants' own streams behind the others. Return whether there were any."""
        tenants: Collection[str] = self._streams.tenants
        if not tenants:
            return False
        keys = [self._stream, *(self._keys.stream(Kind.COMMAND, tenant) for tenant in tenants)]
        try:
            return bool(await self._move(keys, [_MOVED_AT_ONCE, *tenants]))
        except ResponseError as error:  # those of the stream of all tenants can be read
            log.warning("commands of tenants' own streams cannot be moved", extra={"reason": reason_of(error)})
            return False

    def _add(self, entries: Sequence[tuple[bytes, Fields]]) -> None:
        """Put entries into the buffer as commands."""
        for entry, fields in entries:
            self._sequence += 1
            self._buffer.append(self._command(entry.decode(), fields))

    def _command(self, place: str, fields: Fields) -> RawCommand:
        """Return the command of an entry. What an entry lacks is empty, and the command is rejected later."""
        source, address = _address(self._stream, fields.get(b"tenant", b""), fields.get(b"type", b""))
        body = fields.get(b"body", b"")
        size = len(source) + sum(map(len, fields)) + sum(map(len, fields.values()))
        stored_at = _stored_at(fields, place)
        position = Position(self._epoch, self._sequence)
        return RawCommand(address, source, body, _headers(fields), position, size, stored_at, place=place)

    def _take(self, limit: int, most_bytes: int) -> LogBatch:
        """Take a batch from the buffer. A single command may have more bytes."""
        sizes = accumulate(each.size for each in self._buffer)
        count = max(1, sum(size <= most_bytes for size, _ in zip(sizes, range(limit), strict=False)))
        taken = [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]
        self._place = taken[-1].place
        return LogBatch(taken, self._behind + len(self._buffer))


def _headers(fields: Fields) -> Headers:
    """Return the fields that are headers. The id and the address of the reply have the names of headers."""
    if fields.keys() <= {b"tenant", b"type", b"body"}:
        return _NO_HEADERS
    lines = (
        b"\r\n%b: %b" % (_HEADER_OF.get(name, name), value.translate(_LINE_ENDS))
        for name, value in fields.items()
        if name in _HEADER_OF or (name not in _FIELDS and name)
    )
    return Headers(b"".join(lines))


@lru_cache(maxsize=1024)
def _address(stream: str, tenant: bytes, message: bytes) -> tuple[str, Address]:
    """Return the source of a command and its address. That of another text is not valid."""
    names = decode_text(tenant), decode_text(message)
    return " ".join([stream, *names]), Address(Kind.COMMAND, *names)


def _order(place: str) -> tuple[int, int]:
    """Return an id as what orders it."""
    milliseconds, _, number = place.partition("-")
    return int(milliseconds), int(number or 0)


def _stored_at(fields: Fields, place: str) -> int:
    """Return when the server stored a command, in nanoseconds: those of a millisecond are 10 us apart.

    One from a tenant's own stream was stored there before. If its sender chose an id in the far future, the time is
    not known, and neither is that of the commands behind it: the server gives them greater ids.
    """
    milliseconds, number = _order(place)
    if milliseconds > _LAST_MS:
        return 0
    before = fields.get(b"stored-at", b"")
    if before.isdigit():
        milliseconds = min(int(before[:_MS_DIGITS]), milliseconds)
    return milliseconds * _NS_PER_MS + min(number * _STEP_NS, _NS_PER_MS - _STEP_NS)


def _place_of(stored_at: int) -> str:
    """Return the first id of an entry that was stored at an instant or later, in nanoseconds."""
    milliseconds, number = divmod(stored_at, _NS_PER_MS)
    return f"{milliseconds}-{-(-number // _STEP_NS)}"
