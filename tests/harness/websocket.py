"""A NATS subscriber over WebSocket (RFC 6455), like the browser of an operator."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

_BINARY, _CLOSE = 0x82, 0x8


class WebSocketSubscriber:
    """A subscriber with the minimum of both protocols: CONNECT, SUB, PING and messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._text = b""

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int) -> AsyncIterator[Self]:
        """Connect to a listener on this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = f"Host: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}"
        writer.write(f"GET / HTTP/1.1\r\n{upgrade}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        subscriber = cls(reader, writer)
        assert (await subscriber._line()).startswith(b"INFO ")
        subscriber._send('CONNECT {"verbose":false,"pedantic":false}')
        try:
            yield subscriber
        finally:
            writer.close()
            await writer.wait_closed()

    async def subscribe(self, subject: str) -> None:
        """Subscribe to a subject. Return when the server has received the subscription."""
        self._send(f"SUB {subject} 1")
        assert await self.drain() == []

    async def next(self) -> Any:
        """Wait for the next message and return its body."""
        while not (line := await self._line()).startswith(b"MSG "):
            assert line == b"PING", line
            self._send("PONG")
        return await self._body(line)

    async def drain(self) -> list[Any]:
        """Return the bodies of all messages that the server has sent to this subscriber so far."""
        self._send("PING")
        bodies = []
        while (line := await self._line()) != b"PONG":
            if line.startswith(b"MSG "):
                bodies.append(await self._body(line))
        return bodies

    async def _body(self, line: bytes) -> Any:
        size = int(line.rsplit(b" ", 1)[1])
        while len(self._text) < size + 2:
            self._text += await self._frame()
        body, self._text = self._text[:size], self._text[size + 2 :]
        return json.loads(body)

    async def _line(self) -> bytes:
        while b"\r\n" not in self._text:
            self._text += await self._frame()
        line, _, self._text = self._text.partition(b"\r\n")
        return line

    async def _frame(self) -> bytes:
        head, size = await self._reader.readexactly(2)
        assert head & 0xF != _CLOSE, "the server closed the connection"
        if size >= 126:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
        return await self._reader.readexactly(size)

    def _send(self, line: str) -> None:
        text, mask = f"{line}\r\n".encode(), os.urandom(4)
        assert len(text) < 126
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(text))
        self._writer.write(bytes([_BINARY, 0x80 | len(text)]) + mask + masked)
