"""A connection of the stream protocol, by which streams are read natively.

The frames are those of rstream. Its client is not used: it reports neither a stream that was deleted nor a frame that
it cannot read, waits ten seconds for answers on a connection that is lost, and never closes the socket of one.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from rstream import schema
from rstream.constants import Key, OffsetType
from rstream.encoding import decode_frame, encode_frame
from rstream.exceptions import OffsetNotFound, ServerError

from timer_service.adapters.rabbitmq.server import Server

FIRST, LAST = (schema.OffsetSpec(each) for each in (OffsetType.FIRST, OffsetType.LAST))
_ANSWER_SECONDS = 5
_HEARTBEAT_SECONDS = 5
_FRAME_BYTES = 1024 * 1024
_FOLLOWING, _LOOKING = 1, 2
"""The numbers of the subscriptions."""
_DELIVERY = b"\0\x08\0\1"
_CHUNK = struct.Struct(">4x B 2x H I q 8x Q 16x")
"""The beginning of a delivery: subscription, entries, records, time and first offset."""
schema.registry[False, Key.Route] = schema.SuperStreamRouteResponse  # RabbitMQ 3.10 sends it as if it were a request
ERRORS = (OSError, EOFError, ServerError, ValueError, KeyError, TimeoutError)


class Chunk(NamedTuple):
    """Messages that the broker has stored together."""

    first: int
    """The offset of the first message."""
    end: int
    """The offset behind the last message."""
    stored_at: int
    """When the broker stored them, in Unix nanoseconds, to the millisecond."""
    messages: Sequence[bytes]


def at_offset(offset: int) -> schema.OffsetSpec:
    """Return the place of an offset. Behind the end of a stream, it is the next message of any offset."""
    return schema.OffsetSpecOffset(OffsetType.OFFSET, offset)


def at_time(nanoseconds: int) -> schema.OffsetSpec:
    """Return the place of the first chunk that was stored at an instant or later."""
    return schema.OffsetSpecTimestamp(OffsetType.TIMESTAMP, -(-nanoseconds // 1_000_000))


class StreamConnection:
    """A connection that reads one stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: str) -> None:
        self._reader, self._writer, self._stream = reader, writer, stream
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tuned: asyncio.Future[schema.Tune] = asyncio.get_running_loop().create_future()
        self._looking = asyncio.Lock()
        self._look: Chunk | None = None
        self._on_chunk: Callable[[Chunk], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        """Called once when nothing more can be read, with the reason."""
        self.lost: str | None = None
        self._reading = asyncio.create_task(self._read_frames(), name="rabbitmq-stream")

    @classmethod
    async def open(cls, server: Server, stream: str) -> "StreamConnection":
        """Connect. Raises one of `ERRORS`."""
        login = await server.login()
        async with asyncio.timeout(_ANSWER_SECONDS):
            try:
                reader, writer = await asyncio.open_connection(
                    server.host, server.stream_port, ssl=login.tls, limit=_FRAME_BYTES
                )
            except OSError as error:
                where = f"{server.host}:{server.stream_port} (stream_port of TIMER_BROKER_URL)"
                raise ConnectionError(f"{error}: is {where} the port of the plugin rabbitmq_stream?") from error
        self = cls(reader, writer, stream)
        try:
            await self._ask(schema.PeerProperties, properties=[schema.Property("connection_name", "timer-service")])
            await self._ask(schema.SaslHandshake)
            plain = f"\0{login.user}\0{login.password}".encode()
            await self._ask(schema.SaslAuthenticate, mechanism="PLAIN", data=plain)
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._tuned
            self._send(schema.Tune(frame_max=_FRAME_BYTES, heartbeat=_HEARTBEAT_SECONDS))
            await self._ask(schema.Open, virtual_host=server.vhost)
        except BaseException:
            await self.close()
            raise
        return self

    async def marker(self, name: str) -> int | None:
        """Return the number that is stored in the stream under a name, as an offset of a consumer; None if none is."""
        try:
            found: int = (await self._ask(schema.QueryOffset, reference=name, stream=self._stream)).offset
        except OffsetNotFound:
            return None
        return found

    def set_marker(self, name: str, number: int) -> None:
        """Store a number in the stream under a name. It takes one offset. The broker does not answer."""
        self._send(schema.StoreOffset(reference=name, stream=self._stream, offset=number))

    async def look(self, where: schema.OffsetSpec) -> Chunk | None:
        """Return the chunk at a place; None if there is none now."""
        async with self._looking:
            await self._subscribe(_LOOKING, where, 1)
            # The broker sends what is stored before it handles the next request.
            await self._ask(schema.Unsubscribe, subscription_id=_LOOKING)
            found, self._look = self._look, None
        return found

    async def is_bound_to(self, exchange: str) -> bool:
        """Return whether an exchange passes messages of every key to the stream."""
        found = await self._ask(schema.SuperStreamRoute, super_stream=exchange, routing_key="any.key")
        return self._stream in found.streams

    async def follow(self, where: schema.OffsetSpec, chunks: int, on_chunk: Callable[[Chunk], None]) -> None:
        """Call `on_chunk` with up to so many chunks from a place on, and with more as `ask_more` asks for them."""
        self._on_chunk = on_chunk
        await self._subscribe(_FOLLOWING, where, chunks)

    def ask_more(self, chunks: int) -> None:
        """Let the broker send more chunks."""
        self._send(schema.Credit(subscription_id=_FOLLOWING, credit=chunks))

    async def close(self) -> None:
        """Disconnect."""
        self._on_chunk = lambda _: None
        self._lose("closed")
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _subscribe(self, number: int, where: schema.OffsetSpec, chunks: int) -> None:
        subscribe = {"stream": self._stream, "offset_spec": where, "credit": chunks, "properties": []}
        await self._ask(schema.Subscribe, subscription_id=number, **subscribe)

    async def _ask(self, frame: type[Any], **fields: Any) -> Any:
        """Return the answer to a request. Raises one of `ERRORS`."""
        if self.lost is not None:
            raise ConnectionError(self.lost)
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._send(frame(number, **fields))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                found = await answer
        finally:
            del self._answers[number]
        found.check_response_code()
        return found

    def _send(self, frame: schema.Frame) -> None:
        if self.lost is None:
            self._writer.write(encode_frame(frame))

    async def _read_frames(self) -> None:
        """Read until the connection is lost."""
        try:
            while True:
                async with asyncio.timeout(3 * _HEARTBEAT_SECONDS):
                    size = int.from_bytes(await self._reader.readexactly(4), "big")
                    frame = await self._reader.readexactly(size)
                if frame.startswith(_DELIVERY):
                    self._receive_chunk(frame)
                elif (reason := self._receive(decode_frame(frame))) is not None:
                    self._lose(reason)
                    return
        except TimeoutError:
            self._lose("the broker is silent")
        except EOFError:
            self._lose("the broker has closed the connection")
        except Exception as error:  # noqa: BLE001 - a frame can have any bytes
            self._lose(str(error) or type(error).__name__)

    def _receive_chunk(self, frame: bytes) -> None:
        subscription, entries, records, stored_ms, first = _CHUNK.unpack_from(frame)
        chunk = Chunk(first, first + records, stored_ms * 1_000_000, _split(frame, entries, records))
        if subscription == _LOOKING:
            self._look = chunk
        else:
            self._on_chunk(chunk)

    def _receive(self, frame: Any) -> str | None:
        """Take a frame. Return why nothing more can be read after it; None if more can."""
        match frame:
            case schema.Tune():
                self._tuned.set_result(frame)
            case schema.Heartbeat():
                self._send(frame)
            case schema.MetadataUpdate():
                return f"stream {self._stream} was deleted or has moved"
            case schema.Close():
                return f"the broker closes the connection: {frame.reason}"
            case _ if (answer := self._answers.get(frame.corr_id or 0)) is not None and not answer.done():
                answer.set_result(frame)
            case _:
                pass  # an answer that nobody waits for any more, or to a credit of a subscription that has ended
        return None

    def _lose(self, reason: str) -> None:
        """End the connection. What waits for an answer fails."""
        if self.lost is None:
            self.lost = reason
            for answer in [*self._answers.values(), self._tuned]:
                if not answer.done():
                    answer.set_exception(ConnectionError(reason))
                    answer.exception()
            self._writer.close()
            self.on_lost(reason)


def _split(frame: bytes, entries: int, records: int) -> Sequence[bytes]:
    """Return the messages of a delivery. A publisher of the stream protocol can put several into an entry.

    They are empty if such an entry cannot be read, as its compression is one that rstream has not.
    """
    if entries != records:
        try:
            decoded: Any = decode_frame(frame)
            several: list[bytes] = decoded.get_messages()
        except Exception:  # noqa: BLE001 - whatever it is, the commands behind must be read
            several = [b""] * records
        return several
    messages = []
    at = _CHUNK.size
    for _ in range(entries):
        end = at + 4 + int.from_bytes(frame[at : at + 4], "big")
        messages.append(frame[at + 4 : end])
        at = end
    return messages
