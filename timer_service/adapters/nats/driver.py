"""The NATS client, guarded against messages that end the driver's reading.

nats-py 2.16 stops reading or closes the connection for good after some messages that any user may send, such as a
subject that is not UTF-8. So this module replaces steps of the driver; each method says why.
"""

# ruff: noqa: SLF001 - the driver has no public way to replace these steps

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import Parser

from timer_service.adapters.nats.api import RawHeaders
from timer_service.core.ports.turns import Turns
from timer_service.core.values.raw_command import decode_text
from timer_service.nats_client import LastingClient

log = logging.getLogger(__name__)

_LONGEST_LINE = 1024 * 1024  # an INFO line names every server of a cluster
_END = b"\r\n"
_READ_BYTES = 64 * 1024
_BYTES_PER_TURN = 1024 * 1024
"""How much is read in a turn. Reading only takes messages apart, and most are refused while there are too many."""
_MESSAGES = (b"MSG ", b"HMSG ")
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
Screen = Callable[[ReadMessage], ReadMessage | None]
"""Returns a message as a subscription shall get it; None if it shall get none. It must be quick."""


class GuardedClient(LastingClient):
    """A client whose reading no message can end. Only the service closes its connection."""

    def __init__(self, screen: Screen = lambda message: message) -> None:
        """`screen` gets each message when it is read, before the driver spends time on it."""
        super().__init__()
        self.screen = screen
        self.receivers: dict[int, ReceiveMany] = {}
        """What takes the messages of some subscriptions while they are read."""
        self._ps: GuardedParser = GuardedParser(self)

    async def subscribe_many(self, subject: str, receive: ReceiveMany) -> Subscription:
        """Subscribe to many messages. They are handed over when they are read, without `screen`.

        The driver would make an object of each, queue it, and wake a task for it.
        """

        async def drop(_message: object) -> None: ...

        # No limits in the client: it would drop messages above them.
        interest = await self.subscribe(subject, cb=drop, pending_msgs_limit=0, pending_bytes_limit=0)
        self.receivers[interest._id] = receive
        return interest

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        """Forget the receiver of a subscription with it."""
        self.receivers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    @property
    def reading(self) -> bool:
        """Whether the task that reads from the connection runs. The driver does not say it."""
        task = self._reading_task
        return task is not None and not task.done()

    async def _read_loop(self) -> None:
        """Read the connection in turns, until it is closed or lost.

        The driver would read as long as data arrives, and nothing else would run.
        """
        try:
            await self._read_in_turns(self._transport)
        except (nats.errors.ProtocolError, OSError) as error:
            await self._process_op_err(error)
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("reading from the broker has failed")

    async def _read_in_turns(self, transport: Any) -> None:
        """Read until the connection is closed or lost. The end of the data counts as lost."""
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
        """Send text of the protocol: whole messages. Without a connection, it raises an error and sends nothing.

        The driver has one call for each message, which takes longer.
        """
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        await self._send_command(frames)
        if self._flush_queue is not None and self._flush_queue.empty():  # a full queue would wait for the server
            await self._flush_pending()

    async def _process_headers(self, headers: bytes | None) -> Any:
        """Return `RawHeaders` where the driver has a dictionary: it refuses some headers. It calls only `get` of it."""
        return RawHeaders(headers) if headers else None

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Msg:
        """Return a message whose subjects may have any bytes. The driver would fail where they are not UTF-8."""
        return Msg(
            _client=self,
            subject=decode_text(subject),
            reply=decode_text(reply),
            data=data,
            headers=headers,
            _sid=sid,
        )


class GuardedParser(Parser):
    """Reads the protocol. An error while one message is processed loses this message only."""

    nc: GuardedClient

    async def parse(self, data: bytes = b"", turns: Turns | None = None) -> None:
        """Read `data`, which follows what was read before.

        The driver's expressions do not match some subjects, and it ends the connection after these.
        """
        turns = turns or Turns(_BYTES_PER_TURN)
        self.buf.extend(data)
        while (end := self.buf.find(_END)) >= 0:
            # Nothing is awaited between reading and deleting: a lost connection empties the buffer.
            if self.buf.startswith(_MESSAGES):
                sid, messages, end = self._find_messages()
                if not messages:
                    return
                del self.buf[:end]
                await self._hand_over(sid, messages)
            else:
                line = bytes(self.buf[:end])
                del self.buf[: end + len(_END)]
                await self._process_line(line)
            await turns.take(end)
        if len(self.buf) > _LONGEST_LINE:
            raise nats.errors.ProtocolError

    def _find_messages(self) -> tuple[int, list[ReadMessage], int]:
        """Return the id of the first subscription in the buffer, its first whole messages, and where they end."""
        messages: list[ReadMessage] = []
        first = end = 0
        while len(messages) < _MOST_AT_ONCE and (found := self._find_message(end)) is not None:
            sid, message, message_end = found
            if messages and sid != first:
                break
            messages.append(message)
            first, end = sid, message_end
        return first, messages, end

    def _find_message(self, start: int) -> tuple[int, ReadMessage, int] | None:
        """Return the id of a subscription, its message that begins at `start`, and where that ends.

        Return None if no whole message is there. Raises an error of the driver, after which the client connects again.
        """
        if (line_end := self.buf.find(_END, start)) < 0:
            return None
        operation, *tokens = bytes(self.buf[start:line_end]).split(b" ")
        if operation not in {b"MSG", b"HMSG"}:
            return None
        block = line_end + len(_END)
        try:  # subject, id of the subscription, perhaps a reply subject, perhaps the size of the headers, size
            subject, sid, *reply = tokens[: -2 if operation == b"HMSG" else -1]
            body = block + (int(tokens[-2]) if operation == b"HMSG" else 0)
            end = block + int(tokens[-1])
            if end + len(_END) > len(self.buf):
                return None
            headers, content = bytes(self.buf[block:body]), bytes(self.buf[body:end])
            message = ReadMessage(subject, reply[0] if reply else b"", headers, content)
            return int(sid), message, end + len(_END)
        except (ValueError, IndexError) as error:
            raise _unreadable(operation) from error

    async def _hand_over(self, sid: int, messages: Sequence[ReadMessage]) -> None:
        """Give messages to the receiver of their subscription, or to the driver, one by one."""
        try:
            if (receive := self.nc.receivers.get(sid)) is not None:
                receive(messages)
                return
        except Exception:
            log.exception("messages could not be processed", extra={"count": len(messages)})
            return
        for read in messages:
            try:
                if (message := self.nc.screen(read)) is not None:
                    subject, reply, headers, body = message
                    await self.nc._process_msg(sid, subject, reply, body, headers)
            except Exception:
                log.exception("a message could not be processed", extra={"subject": decode_text(read.subject[:200])})

    async def _process_line(self, line: bytes) -> None:
        """Process a line that is no message. Raises an error of the driver, after which the client connects again."""
        operation, _, rest = line.partition(b" ")
        client: Any = self.nc
        try:
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
                    raise nats.errors.ProtocolError  # noqa: TRY301 - the same error as for a line of another form
        except nats.errors.Error:
            raise
        except Exception as error:
            raise _unreadable(operation) from error


def _unreadable(operation: bytes) -> nats.errors.ProtocolError:
    """Return the error for a line that is not of the protocol. After it the client connects again."""
    name = operation.decode() if operation in _OPERATIONS else "unknown"
    log.warning("the broker sent a line that cannot be read", extra={"operation": name})
    return nats.errors.ProtocolError()
