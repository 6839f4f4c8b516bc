"""The NATS client, guarded against messages that end the driver's reading.

nats-py 2.16 stops reading or closes the connection for good after some messages that any user may send: a subject with
bytes that are not UTF-8 or with a vertical tab, or a publish that the server refuses as too long. Then no command is
handled. So this module replaces steps of the driver: reading the protocol, decoding messages, and handling errors
of the server. It also reads in turns: the driver would read as long as data arrives, and nothing else would run.
`tests/nats/test_driver.py` runs it against the installed version.
"""

# ruff: noqa: SLF001 - the driver has no public way to replace these steps

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

from timer_service.adapters.nats.headers import RawHeaders
from timer_service.core.ports.turns import Turns
from timer_service.core.values.headers import decode_text
from timer_service.nats_client import LastingClient

log = logging.getLogger(__name__)

_LONGEST_LINE = 1024 * 1024  # an INFO line names every server of a cluster
_END = b"\r\n"
_READ_BYTES = 64 * 1024
_BYTES_AHEAD = 1024 * 1024
"""How much is received while other tasks run. A flood then waits in this buffer and not in the server.

A server ends a connection for which too much waits, and it does so for all workers at once.
"""
_BYTES_PER_TURN = 1024 * 1024
"""How much is read in a turn. Reading only takes messages apart, and most are refused while there are too many."""
_TOKENS = {b"MSG": 5, b"HMSG": 6}
"""How many tokens the line of a message with a reply subject has."""
_MOST_AT_ONCE = 50
"""How many messages are handed over at once, between two looks at the time of the turn."""
_OPERATIONS = {b"MSG", b"HMSG", b"INFO", b"PING", b"PONG", b"+OK", b"-ERR"}


class ReadMessage(NamedTuple):
    """A message as it was read."""

    subject: bytes
    reply: bytes
    headers: bytes
    """The block of headers; empty if there is none."""
    body: bytes


ReceiveMany = Callable[[Sequence[ReadMessage]], None]
"""Takes messages. It must be quick, because nothing is read meanwhile."""


class GuardedClient(LastingClient):
    """A client whose reading no message can end. Only the service closes its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: dict[bytes, ReceiveMany] = {}
        """What takes the messages of some subscriptions while they are read."""
        self._ps: GuardedParser = GuardedParser(self)

    async def subscribe_many(self, subject: str, receive: ReceiveMany) -> Subscription:
        """Subscribe to many messages. They are handed over when they are read.

        The driver would take each apart in several calls, make an object of it, queue it, and wake a task for it. With
        that, the service needs a quarter more processor time for each command.
        """

        async def drop(_message: object) -> None: ...

        # No limits in the client: it would drop messages above them.
        interest = await self.subscribe(subject, cb=drop, pending_msgs_limit=0, pending_bytes_limit=0)
        self.receivers[b"%d" % interest._id] = receive
        return interest

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if (receive := self.receivers.get(b"%d" % sid)) is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            receive([ReadMessage(subject, reply, headers or b"", data)])

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self.receivers.pop(b"%d" % sid, None)
        super()._remove_sub(sid, max_msgs)

    @property
    def reading(self) -> bool:
        """Whether the task that reads from the connection runs."""
        task = self._reading_task
        return task is not None and not task.done()

    async def _read_loop(self) -> None:
        """Read the connection in turns, until it is closed or lost."""
        try:
            await self._read_in_turns(_enlarge_buffer(self._transport))
        except (nats.errors.ProtocolError, OSError) as error:
            await self._process_op_err(error)
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("reading from the broker has failed")

    async def _read_in_turns(self, transport: Any) -> None:
        turns = Turns(_BYTES_PER_TURN)
        while not (self.is_closed or self.is_reconnecting):
            if transport.at_eof():
                error = nats.errors.UnexpectedEOF()
                await self._error_cb(error)
                await self._process_op_err(error)
                return
            data = await transport.read(_READ_BYTES)
            await self._ps.parse(data, turns)
            if len(data) < _READ_BYTES:  # others run until more arrives
                turns = Turns(_BYTES_PER_TURN)

    async def send(self, frames: bytes) -> None:
        """Send text of the protocol: whole messages. Without a connection, it raises an error and sends nothing."""
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        await self._send_command(frames)
        if self._flush_queue is not None and self._flush_queue.empty():  # a full queue would wait for the server
            await self._flush_pending()

    async def _process_headers(self, headers: bytes | None) -> Any:
        """Return `RawHeaders` where the driver has a dictionary. It calls only `get` of it."""
        return RawHeaders(headers) if headers else None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Msg:
        return Msg(
            _client=self,
            subject=decode_text(subject),
            reply=decode_text(reply),
            data=data,
            headers=headers,
            _sid=sid,
        )


def _enlarge_buffer(transport: Any) -> Any:
    """Let a TCP transport receive `_BYTES_AHEAD` before it is read, up to as much at a time. Return it."""
    if (reader := getattr(transport, "_io_reader", None)) is not None:
        reader._limit = _BYTES_AHEAD // 2  # asyncio stops to receive at twice the limit
        with suppress(AttributeError):  # of other event loops
            transport._io_writer.transport.max_size = _BYTES_AHEAD
    return transport


class GuardedParser(Parser):
    """Reads the protocol. An error while one message is processed loses this message only."""

    nc: GuardedClient

    async def parse(self, data: bytes = b"", turns: Turns | None = None) -> None:
        """Read `data`, which follows what was read before."""
        turns = turns or Turns(_BYTES_PER_TURN)
        self.buf.extend(data)
        while self.buf:
            if self.state == AWAITING_CONTROL_LINE:
                await self.take_whole_messages(turns)
                if (end := self.buf.find(_END)) < 0:
                    self._check_length()
                    return
                line = bytes(self.buf[:end])
                del self.buf[: end + len(_END)]
                await self._process_line(line)
            else:
                if len(self.buf) < self.needed + len(_END):
                    return
                body = bytes(self.buf[: self.needed])
                del self.buf[: self.needed + len(_END)]
                self.state = AWAITING_CONTROL_LINE
                await self._process_message(body)
                await turns.take(len(body))  # last, because a lost connection resets the parser

    async def take_whole_messages(self, turns: Turns) -> None:
        """Hand over the messages at the beginning of the buffer that have a reply subject and a receiver."""
        while self.nc.receivers:
            messages, receive, end = self._find_messages(bytes(self.buf))
            if receive is None:
                return
            try:
                receive(messages)
            except Exception:
                log.exception("messages could not be processed", extra={"count": len(messages)})
            del self.buf[:end]  # before anything is awaited: a lost connection empties the buffer
            await turns.take(end)

    def _find_messages(self, read: bytes) -> tuple[list[ReadMessage], ReceiveMany | None, int]:
        """Return the first messages that have the same receiver, the receiver, and where they end."""
        messages: list[ReadMessage] = []
        first: ReceiveMany | None = None
        start = 0
        while (line_end := read.find(_END, start)) >= 0 and len(messages) < _MOST_AT_ONCE:
            tokens = read[start:line_end].split(b" ")
            if _TOKENS.get(tokens[0]) != len(tokens) or (receive := self.nc.receivers.get(tokens[2])) is None:
                break
            block = line_end + 2
            try:
                end = block + int(tokens[-1])
                body = block + int(tokens[4]) if tokens[0] == b"HMSG" else block
            except ValueError:
                break
            if end + 2 > len(read) or (first is not None and first is not receive):
                break
            messages.append(ReadMessage(tokens[1], tokens[3], read[block:body], read[body:end]))
            first, start = receive, end + 2
        return messages, first, start

    def _check_length(self) -> None:
        if len(self.buf) > _LONGEST_LINE:
            raise nats.errors.ProtocolError

    async def _process_line(self, line: bytes) -> None:
        operation, _, rest = line.partition(b" ")
        try:
            if operation in {b"MSG", b"HMSG"}:
                self._begin_message(rest.split(b" "), has_headers=operation == b"HMSG")
            else:
                await self._process_other(operation, rest)
        except nats.errors.Error:
            raise
        except Exception as error:
            log.warning(
                "the broker sent a line that cannot be read",
                extra={"operation": operation.decode() if operation in _OPERATIONS else "unknown"},
            )
            raise nats.errors.ProtocolError from error

    def _begin_message(self, tokens: list[bytes], *, has_headers: bool) -> None:
        """Remember subject, subscription, reply subject and sizes: `subject sid [reply] [header size] size`."""
        sizes = 2 if has_headers else 1
        subject, sid, *reply = tokens[:-sizes]
        self.msg_arg = {"subject": subject, "sid": int(sid), "reply": reply[0] if reply else b""}
        self.header_needed = int(tokens[-sizes]) if has_headers else 0
        self.needed = int(tokens[-1])
        self.state = AWAITING_MSG_PAYLOAD

    async def _process_message(self, body: bytes) -> None:
        split = self.header_needed
        argument = self.msg_arg
        try:
            await self.nc._process_msg(
                argument["sid"], argument["subject"], argument["reply"], body[split:], body[:split] or None
            )
        except Exception:
            log.exception("a message could not be processed", extra={"subject": decode_text(argument["subject"][:200])})

    async def _process_other(self, operation: bytes, rest: bytes) -> None:
        client: Any = self.nc
        match operation.upper():
            case b"PING":
                await client._process_ping()
            case b"PONG":
                await client._process_pong()
            case b"+OK":
                pass
            case b"-ERR":
                await client._process_err(decode_text(rest).lower())
            case b"INFO":
                await client._process_info(json.loads(rest))
            case _:
                raise nats.errors.ProtocolError
