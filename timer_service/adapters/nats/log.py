"""The command log on JetStream: the stream of commands, read by a consumer without acknowledgements.

The consumer only delivers. It is created again each time the log is opened, so it remembers nothing that counts. Its
metadata names the database of the service, so that a service with another database does not read the commands too.

What is on its way when a connection is lost counts as delivered for the server. The reply subject of each message has
the number of the delivery, so a gap shows, and the log must be opened again.

The consumer leaves bodies in the stream for some time (`headers_only`) if many large commands follow, so that those
behind them are found sooner, and if one is larger than a pull. Small bodies are read one by one then, and the reader
asks for a large one when it handles the command.

If the service and the stream are in different accounts, the server takes a command without headers and body for the end
of the answer to a pull, and drops the rest. It shows when the consumer has delivered more than has arrived. Then the
consumer is created again behind that command, and leaves bodies in the stream: every message has a header then.
"""

import asyncio
import json
import logging
import re
import secrets
import time
from base64 import b64decode
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any

import nats.errors
from nats.aio.subscription import Subscription
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.api import RawHeaders, request
from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.driver import ReadMessage
from timer_service.adapters.nats.subjects import Subjects, read_subject
from timer_service.core.ports.log import LogBatch, LogCursor, LogUnavailableError, Opening, read_left_bodies
from timer_service.core.values.address import Kind
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Position
from timer_service.core.values.raw_command import Headers, RawCommand, decode_text
from timer_service.nats_client import UNREADABLE_ANSWER

log = logging.getLogger(__name__)

CONSUMER = "timer-service"
"""The name of the consumer."""
_DATABASE = "timer-service.database"
PULL_SECONDS = 5
_PULL_MESSAGES = 10_000
_PULL_BATCHES = 2
LATE_SECONDS = 3
"""How long after the end of a pull its status may arrive."""
_WRITE_SECONDS = 5
_LOOK_SECONDS = 0.2
_FRACTION = re.compile(r"\.(\d{1,9})")
_LEAVING_SECONDS = 10
"""How long bodies are left in the stream after a command that cannot be read otherwise."""
_FAR_BEHIND_BYTES = 32 * 1024 * 1024
"""If the commands behind a batch have about so many bytes, large bodies are left in the stream."""
_LARGE_BYTES = 8 * 1024
_COST_OF_A_BODY = 40 * 1024
"""To read one small body by itself takes as long as to read and store so many bytes."""
_END_OF_HEADERS = b"\r\n\r\n"
_NO_LINES = b"NATS/1.0" + _END_OF_HEADERS
_SIZE_HEADER = re.compile(rb"\r\nNats-Msg-Size: (\d{1,8})\r\n\r\n\Z")
"""The last header of a message whose body was left in the stream. A publisher may have written it too; then reading the
body gives none."""
_ENDS = {"404", "408"}
"""The status of a pull that ended with fewer messages than it asked for."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_COMPLETED = "Batch Completed"
"""The description of a pull that has brought all messages, but fewer bytes than it allows."""
_OTHER_DATABASE = (
    "a service with another database handles the commands of stream {stream}. If both shall run, set another "
    "TIMER_SUBJECT_PREFIX for one of them. If this database replaces the other one, stop the other service and delete "
    f"the consumer (`nats consumer rm {{stream}} {CONSUMER}`): then this service handles every command that the stream "
    "still has"
)
_NO_HEADERS = Headers(b"")
_ERRORS = (nats.errors.Error, JetStreamError, OSError, *UNREADABLE_ANSWER)


class NatsLog:
    """`core.ports.log.CommandLog` on the stream of commands."""

    def __init__(self, connection: Connection, subjects: Subjects, overlap: timedelta) -> None:
        """`overlap`: how much earlier than the last command another log is read."""
        self._connection = connection
        self._subjects = subjects
        self._stream = subjects.stream(Kind.COMMAND)
        self._overlap_ns = overlap // timedelta(microseconds=1) * 1000
        self._arrived = asyncio.Event()
        self._buffer: deque[RawCommand] = deque()
        self._buffered = 0
        """The bytes of the buffered commands."""
        self._interest: Subscription | None = None
        self._config: Mapping[str, Any] = {}
        """The settings of the consumer. Its priority group is a name that only this process knows."""
        self._inbox = ""
        self._pull: str | None = None
        """The inbox of the request for messages that has not ended."""
        self._pull_until = 0.0
        """When its end must have arrived, as monotonic seconds."""
        self._pulls = 0
        self._received = 0
        """How many messages of the pull have arrived."""
        self._pull_bytes_left = 0
        """How many bytes may still arrive for the pull, as the server counts them. At 0 it ends without a status."""
        self._has_empty = False
        """Whether an empty command was the last one that arrived, and the rest of the answer may be missing."""
        self._delivery_at_look = 0
        """The number of the last delivery when the server was last asked whether some are missing."""
        self._leaves_bodies = False
        """Whether the consumer leaves bodies in the stream."""
        self._leave_bodies_until = 0.0
        """Until when it shall, as monotonic seconds."""
        self._opened_at = LogCursor("", 0)
        self._sequence = 0
        """The last command that has arrived since; 0: none."""
        self._is_dense = False
        """Whether the stream has only commands, so that a gap between sequences shows what was removed."""
        self._owner = ""
        self._delivery = 0
        """The number of the last delivery."""
        self._behind = 0
        self._epoch = 0
        self._broken: str | None = "it was not opened yet"
        self._closed = False
        connection.on_lost.append(lambda: self._break("the connection to the broker was lost"))

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        """Begin to read behind a cursor. See `CommandLog`."""
        await self._forget_received()
        try:
            info = await self._request(f"STREAM.INFO.{self._stream}")
            self._is_dense = info["config"].get("subjects") == [self._subjects.pattern(Kind.COMMAND)]
            opening = await self._find_opening(info, cursor)
            await self._create_consumer(opening.cursor, owner)
            await self._listen()
        except StartError:
            raise
        except _ERRORS as error:
            raise LogUnavailableError(self._text(error)) from error
        self._epoch, self._owner, self._broken = opening.cursor.epoch, owner, None
        self._opened_at, self._sequence = opening.cursor, 0
        return opening

    async def read(self, limit: int, most_bytes: int, seconds: float) -> LogBatch:
        """Return the next commands. See `CommandLog`."""
        until = time.monotonic() + seconds
        while not self._closed:
            if self._broken is not None:
                raise LogUnavailableError(self._broken)
            if self._has_empty:
                await self._go_on_behind_empty()
            await self._keep_pulling(most_bytes)
            if self._buffer:
                batch = self._take(limit, most_bytes)
                await self._keep_pulling(most_bytes)  # so that more arrives while the batch is handled
                await read_left_bodies(self, (each for each in batch.commands if each.size <= _LARGE_BYTES))
                return batch
            if (left := until - time.monotonic()) <= 0:
                break
            self._arrived.clear()
            try:
                async with asyncio.timeout(min(left, _LOOK_SECONDS if self._has_empty else PULL_SECONDS)):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        return LogBatch((), 0)

    async def body(self, raw: RawCommand) -> bytes | None:
        """Return the body of a command that was left in the stream. See `CommandLog`."""
        try:
            found = await self._message({"seq": raw.position.sequence})
        except _ERRORS as error:
            raise LogUnavailableError(self._text(error)) from error
        if found is None or nanoseconds(found["time"]) != raw.stored_at:
            return None
        return b64decode(found.get("data") or "")

    async def end(self) -> LogCursor:
        """Return a cursor at the last command. See `CommandLog`."""
        try:
            info = await self._request(f"STREAM.INFO.{self._stream}")
            last = await self._message({"last_by_subj": self._subjects.pattern(Kind.COMMAND)})
        except _ERRORS as error:
            raise LogUnavailableError(self._text(error)) from error
        if last is None:
            return LogCursor(info["created"], 0)
        return LogCursor(info["created"], 0, last["seq"], nanoseconds(last["time"]))

    async def has_others(self, tenant: str) -> bool:
        """Return whether the stream may have commands of other tenants. See `CommandLog`."""
        own = {"subjects_filter": self._subjects.pattern_of_tenant(Kind.COMMAND, tenant)}
        try:
            state = (await self._request(f"STREAM.INFO.{self._stream}", own))["state"]
        except _ERRORS:
            return True
        return bool(sum((state.get("subjects") or {}).values()) < state["messages"])

    async def close(self) -> None:
        """Stop reading."""
        self._closed = True
        self._arrived.set()
        await self._close_inbox()

    async def _find_opening(self, info: Mapping[str, Any], cursor: LogCursor | None) -> Opening:
        """Return where to read in the stream: from its beginning without a cursor, else behind the cursor.

        If the stream is another log than that of the cursor, or was rolled back, read from the time of the cursor,
        under a greater epoch.
        """
        created, state = info["created"], info["state"]
        created_ms = nanoseconds(created) // 1_000_000
        first, last = state["first_seq"], state["last_seq"]
        if cursor is None:
            return Opening(LogCursor(created, created_ms, max(first - 1, 0)), unread=state["messages"])
        if not await self._has_command_of(cursor, created, last):
            moved = LogCursor(created, max(cursor.epoch + 1, created_ms), 0, cursor.stored_at)
            return Opening(moved, is_other=True, unread=state["messages"])
        was_read = cursor.sequence > 0 or cursor.stored_at == 0  # else the cursor has only a time
        removed = max(first - cursor.sequence - 1, 0) if was_read else 0
        unread = min(last - cursor.sequence, state["messages"])
        return Opening(cursor._replace(log=created), removed=removed, unread=unread)

    async def _has_command_of(self, cursor: LogCursor, created: str, last: int) -> bool:
        """Return whether the stream has the command of a cursor, or had it and has removed it."""
        if cursor.sequence == 0:  # there is no command to compare
            return cursor.log == created
        if last < cursor.sequence:
            return False
        found = await self._message({"seq": cursor.sequence})
        return cursor.log == created if found is None else bool(nanoseconds(found["time"]) == cursor.stored_at)

    async def _message(self, which: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a stored message; None if the stream does not have it."""
        try:
            answer = await self._request(f"STREAM.MSG.GET.{self._stream}", which)
        except NotFoundError:
            return None
        message: Mapping[str, Any] = answer["message"]
        return message

    async def _create_consumer(self, cursor: LogCursor, owner: str) -> None:
        """Create the consumer behind a cursor. Raises `StartError` if it belongs to another database."""
        name = f"{self._stream}.{CONSUMER}"
        try:
            found = await self._request(f"CONSUMER.INFO.{name}")
        except NotFoundError:
            pass
        else:
            if found["config"].get("metadata", {}).get(_DATABASE) not in {None, owner}:
                raise StartError(_OTHER_DATABASE.format(stream=self._stream))
            await self._request(f"CONSUMER.DELETE.{name}")
        self._config = {
            "durable_name": CONSUMER,
            "filter_subject": self._subjects.pattern(Kind.COMMAND),
            "ack_policy": "none",
            "metadata": {_DATABASE: owner},
            # A random group: the server refuses the pulls of another process that still uses this consumer.
            "priority_groups": [secrets.token_hex(8)],
            "priority_policy": "overflow",
            **self._start(cursor),
        }
        await self._write_consumer("create")

    async def _write_consumer(self, action: str) -> None:
        """Create or update the consumer. It leaves bodies in the stream if it shall."""
        self._leaves_bodies = time.monotonic() < self._leave_bodies_until
        config = {**self._config, "headers_only": self._leaves_bodies}
        body = {"stream_name": self._stream, "config": config, "action": action}
        name = f"CONSUMER.DURABLE.CREATE.{self._stream}.{CONSUMER}"
        await self._request(name, body, seconds=_WRITE_SECONDS)

    def _start(self, cursor: LogCursor) -> Mapping[str, Any]:
        """Return the settings of a consumer that begins behind a cursor.

        In another log, the times of two brokers' clocks are compared. So it begins earlier rather than later.
        """
        if cursor.sequence:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": cursor.sequence + 1}
        if cursor.stored_at:
            start = datetime.fromtimestamp(max(cursor.stored_at - self._overlap_ns, 0) / 1e9, UTC)
            return {"deliver_policy": "by_start_time", "opt_start_time": start.isoformat()}
        return {"deliver_policy": "all"}

    async def _listen(self) -> None:
        """Subscribe to a new inbox, for the deliveries of a new consumer."""
        self._inbox = self._connection.client.new_inbox()
        self._pull, self._delivery, self._has_empty = None, 0, False
        self._interest = await self._connection.client.subscribe_many(f"{self._inbox}.*", self._receive)

    async def _forget_received(self) -> None:
        """Forget what was received. What is still on its way belongs to another inbox."""
        self._broken = "it is being opened"
        self._buffer.clear()
        self._buffered = 0
        await self._close_inbox()

    async def _close_inbox(self) -> None:
        """End the subscription. Otherwise the client would renew it after an outage."""
        interest, self._interest = self._interest, None
        if interest is not None:
            try:
                await interest.unsubscribe()
            except _ERRORS as error:
                log.debug("the inbox of the command log is still open", extra={"reason": error_text(error)})

    async def _go_on_behind_empty(self) -> None:
        """If the server has dropped the rest of an answer, create the consumer again, and listen at another inbox."""
        if self._leaves_bodies or self._pull is None:  # every message has a header, or nothing more is to arrive
            self._has_empty = False
            return
        try:
            if not await self._has_lost_deliveries():
                return
            self._leave_bodies_until = time.monotonic() + _LEAVING_SECONDS
            await self._close_inbox()
            sequence = self._sequence or self._opened_at.sequence
            await self._create_consumer(self._opened_at._replace(sequence=sequence), self._owner)
            await self._listen()
        except _ERRORS as error:
            self._break(self._text(error))

    async def _has_lost_deliveries(self) -> bool:
        """Return whether the server has delivered more than has arrived, and none has arrived since the last look."""
        before, self._delivery_at_look = self._delivery_at_look, self._delivery
        info = await self._request(f"CONSUMER.INFO.{self._stream}.{CONSUMER}")
        if self._delivery != before:
            return False
        return bool(info["delivered"]["consumer_seq"] > self._delivery)

    async def _keep_pulling(self, most_bytes: int) -> None:
        """Ask for the bytes of two batches if no pull is open and less than a batch is buffered.

        So at most three batches are in memory. A pull that should have ended long ago breaks the log.
        """
        if self._pull is not None:
            if time.monotonic() > self._pull_until:
                self._break("the broker does not answer")
        elif self._buffered < most_bytes:
            try:
                await self._begin_pull(_PULL_BATCHES * most_bytes)
            except _ERRORS as error:
                self._break(self._text(error))

    async def _begin_pull(self, most_bytes: int) -> None:
        """Ask for commands. Before that, change the consumer if it leaves bodies in the stream and shall not, or shall.

        While others publish, the server is slow to begin a pull, so each asks for many messages.
        """
        self._pull_bytes_left = most_bytes
        ask = {
            "batch": _PULL_MESSAGES,
            "max_bytes": self._pull_bytes_left,
            "expires": PULL_SECONDS * 1_000_000_000,
            "group": self._config["priority_groups"][0],
        }
        self._pulls += 1
        self._received, self._has_empty = 0, False
        self._pull = f"{self._inbox}.{self._pulls}"
        self._pull_until = time.monotonic() + PULL_SECONDS + LATE_SECONDS
        subject, body = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{CONSUMER}", json.dumps(ask).encode()
        if self._leaves_bodies != (time.monotonic() < self._leave_bodies_until):
            await self._write_consumer("update")
        await self._connection.client.publish(subject, body, reply=self._pull)

    def _take(self, limit: int, most_bytes: int) -> LogBatch:
        """Take a batch from the buffer. If its large bodies delay many commands behind it, later pulls leave bodies.

        A small body counts also if it was left in the stream: it is read before the batch is returned.
        """
        sizes = accumulate(each.size if each.size <= _LARGE_BYTES else each.held_bytes for each in self._buffer)
        count = max(1, sum(size <= most_bytes for size, _ in zip(sizes, range(limit), strict=False)))
        taken = [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]
        self._buffered -= sum(each.held_bytes for each in taken)
        batch = LogBatch(taken, self._behind + len(self._buffer))
        if _delays_others(batch):
            self._leave_bodies_until = max(self._leave_bodies_until, time.monotonic() + 1)
        return batch

    def _receive(self, messages: Sequence[ReadMessage]) -> None:
        """Take the commands and the statuses that arrive at the inbox.

        A status has the subject of the inbox, and a command its own: only the server can send that to an inbox.
        """
        behind, inbox = None, self._inbox.encode()
        for subject, reply, headers, body in messages:
            if subject.startswith(inbox):
                self._receive_status(decode_text(subject), RawHeaders(headers))
                continue
            try:  # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<sequence>.<delivery>.<time>.<behind>
                sequence, delivery, stored_at, behind = map(int, reply.split(b".")[-4:])
            except ValueError:
                log.warning("ignored a message that the consumer did not deliver", extra={"subject": str(subject)})
                continue
            if delivery != self._delivery + 1:
                self._break(f"a delivery is missing: {delivery} came after {self._delivery}")
                return
            self._delivery += 1
            self._received += 1
            if sequence > self._sequence + 1 and self._sequence and self._is_dense:
                about = {"count": sequence - self._sequence - 1}
                log.error("commands were removed from the log before they were read", extra=about)
            self._sequence = sequence
            self._pull_bytes_left -= len(subject) + len(reply) + len(headers) + len(body)
            block, left = (headers, 0) if body else _left_bytes(headers)
            self._has_empty = not (body or block or left)
            size = len(subject) + len(block) + len(body)
            self._buffered += size
            source, address = read_subject(Kind.COMMAND, subject)
            self._buffer.append(
                RawCommand(  # without the names of the fields, because this is called for each command
                    address,
                    source,
                    body,
                    Headers(block) if block else _NO_HEADERS,
                    Position(self._epoch, sequence),
                    size + left,
                    stored_at,
                    left,
                )
            )
        if behind is not None:
            self._behind = behind
        if self._received >= _PULL_MESSAGES or self._pull_bytes_left == 0:  # nothing more can arrive for the pull
            self._pull = None
        self._arrived.set()

    def _receive_status(self, subject: str, headers: RawHeaders) -> None:
        """End the pull at its last status, and break the log if messages are missing or the server refuses pulls."""
        code, description = headers.get("Status") or "", headers.get("Description") or ""
        if self._pull is None or subject != self._pull or code == "100" or description == _COMPLETED:
            return  # it is of an earlier pull, says that it is alive, or follows messages that are counted
        self._arrived.set()
        is_too_large = _TOO_LARGE in description
        if code in _ENDS or is_too_large:
            missing = int(headers.get("Nats-Pending-Messages") or 0)
            if missing and self._received < _PULL_MESSAGES - missing:
                self._break("the end of an answer is missing")
            if is_too_large and self._received == 0:
                self._leave_bodies_until = time.monotonic() + _LEAVING_SECONDS
            self._pull = None
        else:
            self._break(f"{code} {description}".strip())

    def _break(self, reason: str) -> None:
        """Read nothing more before the log was opened again."""
        self._broken = self._broken or reason
        self._arrived.set()

    async def _request(self, name: str, body: Mapping[str, Any] | None = None, *, seconds: float = 2) -> Any:
        return await request(self._connection.client, name, body, seconds=seconds)

    def _text(self, error: BaseException) -> str:
        """Return the reason why the log cannot be read, for an operator."""
        if isinstance(error, NotFoundError):
            return f"stream {self._stream} is missing"
        if isinstance(error, nats.errors.TimeoutError):
            return "JetStream does not answer; `timer-service doctor` names every missing permission"
        return error_text(error) if isinstance(error, Exception) else str(error)


def _delays_others(batch: LogBatch) -> bool:
    """Return whether large bodies in a batch, and in those behind it if they are alike, delay many commands.

    That is not so if the small bodies beside them would take longer to read one by one.
    """
    large = [each.size for each in batch.commands if each.size > _LARGE_BYTES]
    small_count = len(batch.commands) - len(large)
    bytes_behind = batch.behind * sum(large) / len(batch.commands)
    return bytes_behind > _FAR_BEHIND_BYTES and sum(large) > _COST_OF_A_BODY * small_count


def _left_bytes(block: bytes) -> tuple[bytes, int]:
    """Return the headers of a message as they were published, and how many bytes of its body are in the stream."""
    if (found := _SIZE_HEADER.search(block)) is None:
        return block, 0
    published = block[: found.start()] + _END_OF_HEADERS
    return b"" if published == _NO_LINES else published, int(found[1])


@lru_cache(maxsize=8)
def nanoseconds(text: str) -> int:
    """Return an instant of JetStream, such as `2026-11-22T09:00:00.123456789Z`, in Unix nanoseconds."""
    fraction = _FRACTION.search(text)
    seconds = int(datetime.fromisoformat(_FRACTION.sub("", text)).timestamp())
    return seconds * 1_000_000_000 + (int(fraction[1].ljust(9, "0")) if fraction else 0)
