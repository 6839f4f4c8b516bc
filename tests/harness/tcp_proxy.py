"""A TCP proxy on this machine that disturbs connections: it delays, stalls, drips, cuts and half-closes them."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple, Self

_HOST = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close sends RST instead of FIN


class Link(NamedTuple):
    """How the proxy forwards bytes, in both directions."""

    delay_seconds: float = 0
    """The wait before each chunk is forwarded."""
    chunk_bytes: int = _CHUNK_BYTES
    """The most bytes that are forwarded at once."""
    stalled: bool = False
    """Nothing is forwarded. New connections are accepted, and they stall too."""


GOOD = Link()
DRIPPING = Link(delay_seconds=0.002, chunk_bytes=256)
"""Up to 128 KB/s, in pieces that are smaller than most messages."""
STALLED = Link(stalled=True)


class _Pair:
    """One connection of a client and the connection to the target that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, target: asyncio.StreamWriter, link: Link) -> None:
        self.client = client
        self.target = target
        self._link = link
        self._changed = asyncio.Event()
        self.half_closed = False

    @property
    def link(self) -> Link:
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        self._changed.set()

    async def forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Forward bytes until the source ends its direction."""
        while data := await source.read(_CHUNK_BYTES):
            start = 0
            while start < len(data):
                await self._until_flowing()
                await asyncio.sleep(self._link.delay_seconds)
                piece = data[start : start + self._link.chunk_bytes]
                start += len(piece)
                if sink is self.client and self.half_closed:
                    continue  # this direction has ended
                sink.write(piece)
                await sink.drain()
        await self._until_flowing()
        sink.write_eof()

    async def _until_flowing(self) -> None:
        while self._link.stalled:
            self._changed.clear()
            await self._changed.wait()

    def close(self, *, reset: bool) -> None:
        for writer in (self.client, self.target):
            if not reset:
                writer.close()
                continue
            with suppress(OSError):  # the peer has closed the connection
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


class TcpProxy:
    """A proxy in front of a port of this machine. Use it as a context manager, then change it while it runs."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._link = GOOD
        self._refusing = False

    @property
    def port(self) -> int:
        """The port for clients."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def set_link(self, link: Link) -> None:
        """Forward the bytes of all connections, open and new, as `link` says."""
        self._link = link
        for pair in self._pairs:
            pair.link = link

    def stall_open_connections(self) -> None:
        """Forward nothing on the open connections any more, as if their packets were lost. New connections work."""
        for pair in self._pairs:
            pair.link = STALLED

    def cut(self, *, reset: bool = False) -> None:
        """End every open connection on both sides with FIN, or with RST if `reset`."""
        for pair in tuple(self._pairs):
            pair.close(reset=reset)

    def half_close(self) -> None:
        """Send FIN to each client, and no more bytes. The bytes of the client are still forwarded."""
        for pair in self._pairs:
            pair.half_closed = True
            with suppress(OSError):  # the client has closed the connection
                pair.client.write_eof()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Cut all connections, and each new one as soon as it is accepted, while the block runs."""
        self._refusing = True
        self.cut(reset=True)
        try:
            yield
        finally:
            self._refusing = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        while self._pairs:
            self.cut(reset=True)
            await asyncio.sleep(0)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection(_HOST, self._target_port)
        except OSError:  # the target is stopped
            writer.transport.abort()
            return
        pair = _Pair(writer, target_writer, self._link)
        self._pairs.add(pair)
        forwarding = asyncio.gather(
            pair.forward(reader, target_writer), pair.forward(target_reader, writer), return_exceptions=True
        )
        try:
            for each in (writer, target_writer):
                asyncio.create_task(_wait_closed(each)).add_done_callback(lambda _: forwarding.cancel())
            await asyncio.wait([forwarding])
        finally:
            self._pairs.discard(pair)
            forwarding.cancel()
            pair.close(reset=False)


async def _wait_closed(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        await writer.wait_closed()
