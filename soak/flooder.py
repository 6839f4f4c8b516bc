"""The process of a tenant that makes a mistake: `python -m soak.flooder PORT SECONDS MOST NAME`.

It reads its password from its standard input, prepares the flood, prints `begins`, sends until the time is up or `MOST`
messages are sent, and prints how many it has sent. Its work does not delay the measurement.
"""

import asyncio
import json
import os
import sys
from itertools import count

from soak.mistakes import LONG_AFTER, MISTAKES, TENANT, Flood, address, body
from tests.harness.raw_nats import RawMessage, header_block

_CONNECTIONS = 2
_MOST_UNREAD = 2
"""How many blocks a connection sends before the server has read the first of them, or the service has handled it."""
_PATIENCE_SECONDS = 60
_NICE = 10
"""The tenant has its own machine. Here it shares two processors with the service and the server, which go first."""


class Flooder:
    """A tenant that sends a flood over its connections until its time is up."""

    def __init__(self, flood: Flood, port: int, password: str, most: int) -> None:
        self._flood = flood
        self._port = port
        login = {"user": TENANT, "pass": password, "headers": True, "verbose": False}
        self._connect_line = b"CONNECT %b\r\n" % json.dumps(login).encode()
        self._numbers = iter(range(most // flood.size))
        self._inboxes = (b"_INBOX.tenant-a.mark-%d" % number for number in count())
        self._done = False
        self.blocks = 0

    async def prepare(self) -> None:
        """Publish the commands that the flood needs. Return when the service has handled them."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            inbox = next(self._inboxes)
            reader, writer = await self._connect(b"SUB %b 1\r\n" % inbox)
            for message in [*self._flood.prepare, _mark(inbox)]:
                writer.write(message.encode())
                await writer.drain()
            while not (await reader.readline()).startswith(b"MSG "):
                pass
            writer.close()

    async def send(self, seconds: float) -> None:
        """Send for some seconds, at most. A connection that the server ends is opened again."""
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(_CONNECTIONS):
                    group.create_task(self._send_again())
        except TimeoutError:
            return

    async def _send_again(self) -> None:
        while not self._done:
            try:
                await self._send_once()
            except OSError:
                await asyncio.sleep(0.001)

    async def _send_once(self) -> None:
        inbox = next(self._inboxes)
        question, answer = b"PING\r\n", b"PONG\r\n"
        opening = self._flood.opening
        if self._flood.waits:
            question, answer = _mark(inbox).encode(), b"MSG %b " % inbox
            opening += b"SUB %b mark\r\n" % inbox
        reader, writer = await self._connect(opening)
        answers = _Answers(reader, answer) if self._flood.reads else None
        try:
            for sent, number in enumerate(self._numbers, 1):
                writer.write(self._flood.block(number) + question)
                await writer.drain()
                self.blocks += 1
                if answers is not None:
                    await answers.until(sent - _MOST_UNREAD)
            self._done = True
        finally:
            if answers is not None:
                await answers.close()
            writer.transport.abort()

    async def _connect(self, opening: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        await reader.readline()
        writer.write(self._connect_line + opening)
        return reader, writer


def _mark(inbox: bytes) -> RawMessage:
    """Return a command whose outcome says that the commands before it are handled."""
    content = body("ScheduleTimer", {"serviceCallId": "mark", "dueAt": LONG_AFTER})
    return RawMessage(address("ScheduleTimer"), content, header_block(b"Timer-Reply-To: " + inbox))


class _Answers:
    """Reads what the server sends, and counts the answers to the marks of the blocks."""

    def __init__(self, reader: asyncio.StreamReader, answer: bytes) -> None:
        self._reader = reader
        self._answer = answer
        self._count = 0
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def until(self, number: int) -> None:
        """Wait until so many blocks are answered. Raises `ConnectionError` if the server ends the connection."""
        while self._count < number:
            if self._reading.done():
                raise ConnectionResetError
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        rest = b""
        try:
            while new := await self._reader.read(1 << 20):
                data = rest + new
                self._count += data.count(self._answer) - rest.count(self._answer)
                rest = data[-len(self._answer) :]
                self._changed.set()
        except OSError:
            return
        finally:
            self._changed.set()


async def main(port: int, seconds: float, most: int, name: str) -> None:
    """Prepare, send and print how many messages were sent."""
    os.nice(_NICE)
    flood = MISTAKES[name]
    flooder = Flooder(flood, port, sys.stdin.readline().strip(), most)
    await flooder.prepare()
    print("begins", flush=True)
    await flooder.send(seconds)
    print(flooder.blocks * flood.size, flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
