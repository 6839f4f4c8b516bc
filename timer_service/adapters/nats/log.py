"""The command log on JetStream: the stream of commands, read by a consumer without acknowledgements.

The consumer only delivers. It is created again each time the log is opened, so it remembers nothing that counts. Its
metadata names the database of the service, so that a service with another database does not read the commands too.

What is on its way when a connection is lost counts as delivered for the server. The reply subject of each message has
the number of the delivery, so a gap shows, and the log must be opened again.

If the service and the stream are in different accounts, the server takes a command without headers and body for the end
of the answer to a pull, and drops the rest. Then the consumer is created again behind that command, and for some time
each request asks for a single command. The server also remembers each request for minutes, or until the inbox is
closed.
"""

import asyncio
import json
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import nats.errors
from nats.aio.subscription import Subscription
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.api import RawHeaders, request
from timer_service.adapters.nats.connection import Connection
from timer_service.adapters.nats.driver import ReadMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.log import LogBatch, LogCursor, LogUnavailableError, Opening
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import StartError
from timer_service.core.values.headers import Headers, decode_text
from timer_service.core.values.message import Address, Kind, Position
from timer_service.core.values.raw_command import RawCommand
from timer_service.nats_client import UNREADABLE_ANSWER

log = logging.getLogger(__name__)

CONSUMER = "timer-service"
"""The name of the consumer."""
_DATABASE = "timer-service.database"
_PULL_SECONDS = 5
_PULL_MESSAGES = 10_000
_PULL_BATCHES = 2
_LATE_SECONDS = 3
"""How long after the end of a pull its status may arrive."""
_WRITE_SECONDS = 5
_FRACTION = re.compile(r"\.(\d{1,9})")
_REQUESTS = 32
"""How many requests for a single command are open at a time."""
_MOST_REQUESTS = 5_000
"""How many requests one inbox gets."""
_SINGLE_SECONDS = 10
_ENDS = {"404", "408"}
"""The status of a pull that ended with fewer messages than it asked for."""
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_COMPLETED = "Batch Completed"
"""The description of a pull that has brought all messages, but fewer bytes than it allows."""
_NO_HEADERS = Headers(b"")
_ERRORS = (nats.errors.Error, JetStreamError, OSError, *UNREADABLE_ANSWER)


class _Pull(NamedTuple):
    """One request for messages or several, that have not all ended."""

    inbox: str
    wanted: int
    until: float
    """When its end must have arrived, as monotonic seconds."""
    requests: int
    """How many requests it has. If several, each asks for a single message."""


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
        self._group = ""
        """A name of the consumer that only this process knows."""
        self._inbox = ""
        self._inbox_bytes = b""
        self._pull: _Pull | None = None
        self._pulls = 0
        self._requests = 0
        """How many requests the inbox was named in."""
        self._received = 0
        """How many messages of the pull have arrived."""
        self._left = 0
        """How many bytes may still arrive for the pull, as the server counts them. At 0 it ends without a status."""
        self._ended = 0
        """How many requests of the pull have ended without all their messages."""
        self._is_cut = False
        """Whether the server may have dropped the rest of an answer."""
        self._single_until = 0.0
        """Until when each request asks for a single message, as monotonic seconds."""
        self._opened_at = LogCursor("", 0)
        self._sequence = 0
        """The last command that has arrived since; 0: none."""
        self._owner = ""
        self._delivery = 0
        """The number of the last delivery."""
        self._behind = 0
        self._epoch = 0
        self._is_large = False
        """Whether the next message is larger than a batch."""
        self._broken: str | None = "it was not opened yet"
        self._closed = False
        connection.on_lost.append(lambda: self._break("the connection to the broker was lost"))

    @property
    def health(self) -> Health:
        """Down while nothing can be read."""
        return HEALTHY if self._broken is None else Health.down(f"the command log is not read: {self._broken}")

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        """Begin to read behind a cursor. See `CommandLog`."""
        await self._leave()
        try:
            opening = await self._find(cursor)
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
            if self._is_cut or (self._requests >= _MOST_REQUESTS and self._pull is None):
                await self._resume()
            await self._keep_pulling(most_bytes)
            if self._buffer:
                batch = self._take(limit, most_bytes)
                await self._keep_pulling(most_bytes)
                return batch
            if (left := until - time.monotonic()) <= 0:
                break
            self._arrived.clear()
            try:
                async with asyncio.timeout(min(left, _PULL_SECONDS)):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        return LogBatch((), 0)

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

    async def _find(self, cursor: LogCursor | None) -> Opening:
        """Look where to go on behind a cursor."""
        info = await self._request(f"STREAM.INFO.{self._stream}")
        created, state = info["created"], info["state"]
        created_ms = nanoseconds(created) // 1_000_000
        first, last = state["first_seq"], state["last_seq"]
        if cursor is None:
            return Opening(LogCursor(created, created_ms, max(first - 1, 0)), unread=state["messages"])
        if not await self._has(cursor, created, last):
            moved = LogCursor(created, max(cursor.epoch + 1, created_ms), 0, cursor.stored_at)
            return Opening(moved, is_other=True, unread=state["messages"])
        was_read = cursor.sequence > 0 or cursor.stored_at == 0  # otherwise nothing of this log was
        removed = max(first - cursor.sequence - 1, 0) if was_read else 0
        unread = min(last - cursor.sequence, state["messages"])
        return Opening(cursor._replace(log=created), removed=removed, unread=unread)

    async def _has(self, cursor: LogCursor, created: str, last: int) -> bool:
        """Return whether the stream has the command of a cursor, or had it and has removed it."""
        if cursor.sequence == 0:
            return cursor.log == created
        if last < cursor.sequence:
            return False
        found = await self._message({"seq": cursor.sequence})
        return cursor.log == created if found is None else bool(nanoseconds(found["time"]) == cursor.stored_at)

    async def _message(self, which: Mapping[str, Any]) -> Mapping[str, Any] | None:
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
                raise StartError(
                    f"a service with another database handles the commands of stream {self._stream}. If both shall "
                    "run, set another TIMER_SUBJECT_PREFIX for one of them. If this database replaces the other one, "
                    f"stop the other service and delete the consumer (`nats consumer rm {self._stream} {CONSUMER}`): "
                    "then this service handles every command that the stream still has"
                )
            await self._request(f"CONSUMER.DELETE.{name}")
        self._group = secrets.token_hex(8)
        config = {
            "durable_name": CONSUMER,
            "filter_subject": self._subjects.pattern(Kind.COMMAND),
            "ack_policy": "none",
            "max_waiting": 2 * _REQUESTS,
            "metadata": {_DATABASE: owner},
            # A pull for the consumer of another process, which has the same name, is refused.
            "priority_groups": [self._group],
            "priority_policy": "overflow",
            **self._start(cursor),
        }
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        await self._request(f"CONSUMER.DURABLE.CREATE.{name}", body, seconds=_WRITE_SECONDS)

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
        client = self._connection.client
        self._inbox = client.new_inbox()
        self._pull, self._requests, self._delivery, self._is_large, self._is_cut = None, 0, 0, False, False
        self._inbox_bytes = self._inbox.encode()
        self._interest = await client.subscribe_many(f"{self._inbox}.*", self._receive)

    async def _leave(self) -> None:
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

    async def _resume(self) -> None:
        """Create the consumer again behind the last command that has arrived, and listen at another inbox."""
        try:
            await self._close_inbox()
            sequence = self._sequence or self._opened_at.sequence
            await self._create_consumer(self._opened_at._replace(sequence=sequence), self._owner)
            await self._listen()
        except _ERRORS as error:
            self._break(self._text(error))

    async def _keep_pulling(self, most_bytes: int) -> None:
        """Ask for the bytes of two batches if nothing is asked for and less than a batch is buffered.

        So at most three batches are in memory. While others publish, the server is slow to begin a pull, so each asks
        for many messages.
        """
        if self._pull is not None:
            if time.monotonic() > self._pull.until:
                self._break("the broker does not answer")
            return
        if self._buffered >= most_bytes:
            return
        now = time.monotonic()
        is_single = now < self._single_until
        requests = _REQUESTS if is_single and not self._is_large else 1
        batch = 1 if is_single or self._is_large else _PULL_MESSAGES
        ask: dict[str, Any] = {"batch": batch, "expires": _PULL_SECONDS * 1_000_000_000, "group": self._group}
        if not self._is_large:
            ask["max_bytes"] = self._left = _PULL_BATCHES * most_bytes // requests
        self._pulls += 1
        self._requests += requests
        self._received = self._ended = 0
        until = now + _PULL_SECONDS + _LATE_SECONDS
        self._pull = _Pull(f"{self._inbox}.{self._pulls}", requests * batch, until, requests)
        subject, body = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{CONSUMER}", json.dumps(ask).encode()
        try:
            for _ in range(requests):
                await self._connection.client.publish(subject, body, reply=self._pull.inbox)
        except nats.errors.Error as error:
            self._break(self._text(error))

    def _take(self, limit: int, most_bytes: int) -> LogBatch:
        sizes = accumulate(each.size for each in self._buffer)
        count = max(1, sum(size <= most_bytes for size, _ in zip(sizes, range(limit), strict=False)))
        taken = [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]
        self._buffered -= sum(each.size for each in taken)
        return LogBatch(taken, self._behind + len(self._buffer))

    def _receive(self, messages: Sequence[ReadMessage]) -> None:
        """Take messages of the inbox. Only the server can send one with the subject of a command there."""
        behind = None
        for subject, reply, block, body in messages:
            if subject.startswith(self._inbox_bytes):
                self._receive_status(decode_text(subject), RawHeaders(block))
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
            self._sequence = sequence
            if not (block or body):
                self._receive_empty()
            headers = Headers(block) if block else _NO_HEADERS
            size = len(subject) + len(body) + len(block)
            self._buffered += size
            self._left -= size + len(reply)
            source, address = _read_subject(subject)
            self._buffer.append(
                RawCommand(  # without the names of the fields, because this is called for each command
                    address,
                    source,
                    body,
                    headers,
                    Position(self._epoch, sequence),
                    size,
                    stored_at,
                )
            )
        if behind is not None:
            self._behind, self._is_large = behind, False
        self._end_pull()
        self._arrived.set()

    def _receive_empty(self) -> None:
        self._single_until = time.monotonic() + _SINGLE_SECONDS
        if self._pull is not None and self._pull.requests == 1 and self._received < self._pull.wanted:
            self._is_cut = True

    def _end_pull(self) -> None:
        """Forget the pull if nothing more can arrive for it."""
        if self._pull is not None:
            given_up = self._ended * self._pull.wanted // self._pull.requests
            is_full = self._pull.requests == 1 and self._left == 0
            if self._received + given_up >= self._pull.wanted or is_full:
                self._pull = None

    def _receive_status(self, subject: str, headers: RawHeaders) -> None:
        code, description = headers.get("Status") or "", headers.get("Description") or ""
        if self._pull is None or subject != self._pull.inbox or code == "100" or description == _COMPLETED:
            return
        self._arrived.set()
        if code in _ENDS or _TOO_LARGE in description:
            missing = int(headers.get("Nats-Pending-Messages") or 0)
            if self._pull.requests == 1 and missing and self._received < self._pull.wanted - missing:
                self._break("the end of an answer is missing")
            self._is_large = _TOO_LARGE in description and self._received == 0
            self._ended += 1
            self._end_pull()
        else:
            self._break(f"{code} {description}".strip())

    def _break(self, reason: str) -> None:
        """Read nothing more before the log was opened again."""
        if self._broken is None:
            self._broken = reason
            self._buffer.clear()
            self._buffered = 0
        self._arrived.set()

    async def _request(
        self, name: str, body: Mapping[str, Any] | None = None, *, seconds: float = 2
    ) -> Mapping[str, Any]:
        return await request(self._connection.client, name, body, seconds=seconds)

    def _text(self, error: BaseException) -> str:
        if isinstance(error, NotFoundError):
            return f"stream {self._stream} is missing"
        if isinstance(error, nats.errors.TimeoutError):
            return "JetStream does not answer; `timer-service doctor` names every missing permission"
        return error_text(error) if isinstance(error, Exception) else str(error)


@lru_cache(maxsize=1024)
def _read_subject(subject: bytes) -> tuple[str, Address]:
    text = decode_text(subject)
    *_, tenant, message = ("", *text.rsplit(".", 2))
    return text, Address(Kind.COMMAND, tenant, message)


@lru_cache(maxsize=8)
def nanoseconds(text: str) -> int:
    """Return an instant of JetStream, such as `2026-11-22T09:00:00.123456789Z`, in Unix nanoseconds."""
    fraction = _FRACTION.search(text)
    seconds = int(datetime.fromisoformat(_FRACTION.sub("", text)).timestamp())
    return seconds * 1_000_000_000 + (int(fraction[1].ljust(9, "0")) if fraction else 0)
