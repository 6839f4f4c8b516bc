"""The process of an attacking tenant: `python -m tests.harness.attacks.attacker PORT SECONDS MOST KIND`.

It reads from its standard input the password, and a word that only the other tenant's messages have. It prepares the
attack, prints `begins`, attacks until the time is up or `MOST` messages are sent, and prints a JSON object with what it
did and how often it received the word. It is a process of its own, so that its work does not delay the measurement.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections import Counter
from itertools import count
from typing import NamedTuple

from tests.harness.attacks import find
from tests.harness.attacks.attack import LONG_AFTER, TENANT, Attack, address, body
from tests.harness.raw_nats import RawMessage, header_block

_MOST_UNREAD = 2
"""How many blocks a connection sends before the server has read the first of them, or the service has handled it."""
_PATIENCE_SECONDS = 60
_PREPARED = b"_INBOX.tenant-a.prepared"
_NICE = 10
"""An attacker has its own machine. Here it shares two processors with the service and the server, which go first."""


class Attacker:
    """A tenant that attacks over several connections until its time is up."""

    def __init__(self, attack: Attack, port: int, *, password: str, foreign: str, most: int) -> None:
        self._attack = attack
        self._port = port
        login = {"user": TENANT, "pass": password, "headers": True, "verbose": False}
        self._connect_line = b"CONNECT %b\r\n" % json.dumps(login).encode()
        self._foreign = foreign.encode()
        self._numbers = iter(range(most // attack.size))
        self._marks = map(_mark if attack.paced else _ping, count())
        self._end = 0.0
        self._done = False
        self.blocks = 0
        self.seen = 0
        """How often a message of the other tenant was received."""
        self.bytes = 0
        self.errors: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Publish the commands that the attack needs. Return when the service has handled them."""
        last = body("ScheduleTimer", {"serviceCallId": "prepared", "dueAt": LONG_AFTER})
        replies_to = header_block(b"Timer-Reply-To: " + _PREPARED)
        messages = [*self._attack.prepare, RawMessage(address("ScheduleTimer"), last, replies_to)]
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reader, writer = await self._connect(b"SUB %b 1\r\n" % _PREPARED)
            for message in messages:
                writer.write(message.encode())
                await writer.drain()
            while not (await reader.readline()).startswith(b"MSG " + _PREPARED):
                pass
            writer.close()

    async def attack(self, seconds: float) -> None:
        """Attack for some seconds."""
        self._end = time.monotonic() + seconds
        await asyncio.gather(*(self._attack_again() for _ in range(self._attack.connections)))

    @property
    def _left(self) -> float:
        return self._end - time.monotonic()

    async def _attack_again(self) -> None:
        """Open a connection again whenever the server has ended it."""
        while self._left > 0 and not self._done:
            try:
                async with asyncio.timeout(self._left):
                    await self._attack_once()
            except TimeoutError:
                return
            except (OSError, asyncio.IncompleteReadError) as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.001)

    async def _attack_once(self) -> None:
        mark = next(self._marks)
        reader, writer = await self._connect(self._attack.opening + mark.opening)
        answers = _Answers(reader, self.errors, mark.answer, self._foreign) if self._attack.reads else None
        try:
            for sent, number in enumerate(self._numbers, 1):
                block = self._connect_line * self._attack.logins + self._attack.block(number)
                writer.write(block + mark.question)
                await writer.drain()
                self.blocks += 1
                self.bytes += len(block)
                if self._attack.reconnects:
                    return
                if answers is not None:
                    await answers.until(sent - _MOST_UNREAD)
            self._done = True
            if answers is not None:
                await answers.until(sent)
        finally:
            if answers is not None:
                await answers.close()
                self.seen += answers.seen
            writer.transport.abort()

    async def _connect(self, opening: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        await reader.readline()
        writer.write(self._connect_line + opening)
        return reader, writer


class _Mark(NamedTuple):
    """What ends each block of a connection, and is answered when the block is done."""

    opening: bytes
    question: bytes
    answer: bytes


def _ping(_connection: int) -> _Mark:
    """Return the mark that the server answers when it has read a block."""
    return _Mark(b"", b"PING\r\n", b"PONG\r\n")


def _mark(connection: int) -> _Mark:
    """Return the mark that the service answers when it has handled a block: the cancel of an unknown timer."""
    inbox = b"_INBOX.tenant-a.mark-%d" % connection
    headers = header_block(b"Timer-Reply-To: " + inbox)
    cancel = RawMessage(address("CancelTimer"), body("CancelTimer", {"serviceCallId": "mark"}), headers)
    return _Mark(b"SUB %b mark\r\n" % inbox, cancel.encode(), b"MSG %b " % inbox)


class _Answers:
    """Reads what the server sends, and counts the answers to the marks of the blocks."""

    def __init__(self, reader: asyncio.StreamReader, errors: Counter[str], answer: bytes, foreign: bytes) -> None:
        self._reader = reader
        self._errors = errors
        self._answer = answer
        self._foreign = foreign
        self.seen = 0
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
        rest, words = b"", (self._answer, self._foreign)
        longest = max(map(len, words))
        try:
            while new := await self._reader.read(1 << 20):
                data = rest + new
                answered, seen = (data.count(word) - rest.count(word) for word in words)
                self._count += answered
                self.seen += seen
                rest = data[-longest:]
                for error in re.findall(rb"-ERR '([A-Za-z ]+)", new):
                    self._errors[error.decode()] += 1
                self._changed.set()
        except OSError as error:
            self._errors[type(error).__name__] += 1
        finally:
            self._changed.set()


async def main(port: int, seconds: float, most: int, kind: str) -> None:
    """Prepare, attack and print what was done."""
    os.nice(_NICE)
    password, foreign = (sys.stdin.readline().strip() for _ in range(2))
    attack = find(kind)
    attacker = Attacker(attack, port, password=password, foreign=foreign, most=most)
    await attacker.prepare()
    print("begins", flush=True)
    await attacker.attack(seconds)
    did = {"sent": attacker.blocks * attack.size, "bytes": attacker.bytes, "seen": attacker.seen}
    print(json.dumps({**did, "errors": attacker.errors}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
