"""A scripted NATS server: it says exactly what a test wants, also what no real server says."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

_INFO = {"server_id": "peer", "version": "2.15.1", "headers": True, "max_payload": 1024 * 1024, "proto": 1}

Answer = Callable[[str, bytes], dict[str, Any] | bytes | None]
"""Answers a request: subject and body to the JSON of the answer, its bytes, or None for silence."""


class ScriptedPeer:
    """One listening port. It accepts one connection after the other and keeps the subscriptions of the newest."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _subject, _body: None
        self.published: list[tuple[str, str, bytes]] = []
        """What the client has published: subject, reply subject and body."""
        self.open: dict[str, str] = {}
        """The subjects of all subscriptions of the newest connection, by their ids."""
        self.most = 0
        """The most subscriptions that a connection has had at a time."""
        self.pings = 0
        self.connections = 0
        self.changed = asyncio.Condition()
        self._subscriptions: dict[str, str] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None] | None] = set()

    @property
    def url(self) -> str:
        """Where the peer listens."""
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        """Listen for connections."""
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """End the connections."""
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.transport.abort()
        await asyncio.gather(*(task for task in self._serving if task is not None))

    async def send(self, raw: bytes) -> None:
        """Send bytes as they are."""
        assert self._writer is not None
        self._writer.write(raw)
        await self._writer.drain()

    async def deliver(
        self, pattern: str, subject: bytes, body: bytes = b"", *, reply: bytes = b"", headers: bytes = b""
    ) -> None:
        """Send a message to the subscription of a pattern. `headers` is the whole block, with its version line."""
        sid = self._subscriptions[pattern].encode()
        to = b" ".join(part for part in (subject, sid, reply) if part)
        if headers:
            await self.send(b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(headers), len(headers + body), headers, body))
        else:
            await self.send(b"MSG %b %d\r\n%b\r\n" % (to, len(body), body))

    async def reply(self, body: bytes) -> None:
        """Answer the newest message that the client has published."""
        _, to, _ = self.published[-1]
        await self._answer(to, body)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the client has done something."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(reached)

    def subscribed(self, pattern: str) -> bool:
        """Return whether the client has subscribed to a pattern."""
        return pattern in self._subscriptions

    def disconnect(self) -> None:
        """Cut the connection."""
        assert self._writer is not None
        self._writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        self._writer, self._subscriptions, self.open = writer, {}, {}
        self.connections += 1
        writer.write(b"INFO %b\r\n" % json.dumps(_INFO).encode())
        self._serving.add(asyncio.current_task())
        try:
            while line := await reader.readline():
                await self._handle(line.decode().split(), reader)
                async with self.changed:
                    self.changed.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _handle(self, tokens: list[str], reader: asyncio.StreamReader) -> None:
        match tokens:
            case ["PING"]:
                self.pings += 1
                await self.send(b"PONG\r\n")
            case ["SUB", pattern, *_, sid]:
                self._subscriptions[pattern] = sid
                self.open[sid] = pattern
                self.most = max(self.most, len(self.open))
            case ["UNSUB", sid]:
                self.open.pop(sid, None)
                self._subscriptions = {each: of for each, of in self._subscriptions.items() if of != sid}
            case ["PUB" | "HPUB" as operation, subject, *rest]:
                sizes = 2 if operation == "HPUB" else 1
                reply = rest[0] if len(rest) > sizes else ""
                body = (await reader.readexactly(int(rest[-1]) + 2))[:-2]
                self.published.append((subject, reply, body))
                if reply and (answer := self.answer(subject, body)) is not None:
                    await self._answer(reply, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    async def _answer(self, reply: str, body: bytes) -> None:
        pattern = next(each for each in self._subscriptions if _matches(each, reply))
        await self.deliver(pattern, reply.encode(), body)


def _matches(pattern: str, subject: str) -> bool:
    return bool(re.fullmatch(re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+"), subject))


@asynccontextmanager
async def scripted_peer() -> AsyncIterator[ScriptedPeer]:
    """Start a peer, and stop it when the block ends."""
    peer = ScriptedPeer()
    await peer.start()
    try:
        yield peer
    finally:
        await peer.stop()
