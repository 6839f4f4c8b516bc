"""Stores messages in a stream as fast as the broker takes them, so that the client is not what is measured.

nats-py needs about 40 µs for a message and its acknowledgement, and the broker about 15 µs. So the frames are built
first, and are then written to a connection with nothing else on it.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.processes import BenchmarkError

_WINDOW = 5000
"""How many messages may wait for their acknowledgement."""
_PORTION = 250
_INBOX = "_INBOX.sender"
_SECONDS = 60
_ACKNOWLEDGED = re.compile(rb'^\{"stream":.*"seq":')
_FAILED = re.compile(rb'"error":|^NATS/1\.0 503|^-ERR')


def frame(subject: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a message in the protocol of NATS. The broker sends its acknowledgement to the inbox of `send_frames`."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (
        subject.encode(),
        _INBOX.encode(),
        len(head),
        len(head) + len(body),
        head,
        body,
    )


async def send_frames(port: int, frames: Sequence[bytes]) -> float:
    """Send frames, a window at a time. Return the seconds from the first frame to the last acknowledgement."""
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
            writer.write(f"CONNECT {json.dumps(options)}\r\nSUB {_INBOX} 1\r\n".encode())
            began = time.perf_counter()
            await _exchange(reader, writer, frames)
            return time.perf_counter() - began
        finally:
            writer.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Sequence[bytes]) -> None:
    sent = acknowledged = 0
    rest = b""
    while acknowledged < len(frames):
        while sent < len(frames) and sent - acknowledged <= _WINDOW - _PORTION:
            portion = frames[sent : sent + _PORTION]
            writer.write(b"".join(portion))
            sent += len(portion)
        await writer.drain()
        if not (read := await reader.read(1 << 18)):
            raise BenchmarkError("the broker closed the connection")
        *lines, rest = (rest + read).split(b"\r\n")
        acknowledged += count_acknowledged(lines)
        if b"PING" in lines:
            writer.write(b"PONG\r\n")


def count_acknowledged(lines: Iterable[bytes]) -> int:
    """Return how many of the lines say that a message is stored. Raises `BenchmarkError` if one was refused."""
    count = 0
    for line in lines:
        if _ACKNOWLEDGED.match(line):
            count += 1
        elif _FAILED.search(line):
            raise BenchmarkError(f"a message was not stored: {line.decode(errors='replace')}")
    return count
