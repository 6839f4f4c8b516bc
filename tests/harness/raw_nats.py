"""A publisher that sends any bytes to a nats-server. A driver would refuse most of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

_WINDOW_BYTES = 4 * 1024 * 1024


class RawMessage(NamedTuple):
    """A message as bytes. `headers` is the whole header block with its empty line; None sends a plain PUB."""

    subject: bytes
    body: bytes = b""
    headers: bytes | None = None
    reply: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of PUB or HPUB."""
        address = b"%b %b" % (self.subject, self.reply)
        if self.headers is None:
            return b"PUB %b %d\r\n%b\r\n" % (address, len(self.body), self.body)
        size = len(self.headers)
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (address, size, size + len(self.body), self.headers, self.body)


def header_block(*lines: bytes) -> bytes:
    """Return a header block of these lines."""
    return b"\r\n".join([b"NATS/1.0", *lines, b"", b""])


class RawNats:
    """A connection to a nats-server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int, **login: str) -> AsyncIterator[Self]:
        """Connect to a server on this machine, with `user` and `pass` if it asks for them."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.readline()).startswith(b"INFO ")
        options = {"verbose": False, "pedantic": False, "headers": True, "name": "raw", **login}
        writer.write(b"CONNECT %b\r\n" % json.dumps(options).encode())
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def publish(self, messages: Iterable[RawMessage]) -> None:
        """Publish messages. Return when the server has read all of them."""
        unread = 0
        for message in messages:
            data = message.encode()
            self._writer.write(data)
            unread += len(data)
            if unread >= _WINDOW_BYTES:
                await self._flush()
                unread = 0
        await self._flush()

    async def _flush(self) -> None:
        self._writer.write(b"PING\r\n")
        await self._writer.drain()
        while (line := await self._reader.readline()) != b"PONG\r\n":
            if line == b"PING\r\n":
                self._writer.write(b"PONG\r\n")
            elif not line.startswith((b"-ERR 'Permissions", b"INFO ")):
                raise AssertionError(f"the server ended the connection: {line!r}")
