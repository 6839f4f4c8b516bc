"""BullMQ on Redis, which runs in node. See `jobs`."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.peers.jobs import Executed, Queue, main

_PACKAGES = Path(sys.prefix) / "node_modules"
_PROGRAM = Path(__file__).parent / "node" / "bullmq.cjs"
_CONCURRENCY = 100
_LINE_BYTES = 1 << 24


class BullQueue:
    def __init__(self, process: asyncio.subprocess.Process, executed: Executed) -> None:
        self._process = process
        self._executed = executed
        self._stored = asyncio.Event()

    async def store(self, numbers: Sequence[int]) -> None:
        await self._store([(number, 0.0) for number in numbers])

    async def store_due(self, due: Mapping[int, float]) -> None:
        await self._store(list(due.items()))

    async def _store(self, jobs: Sequence[tuple[int, float]]) -> None:
        self._stored.clear()
        self._ask({"store": jobs})
        await self._stored.wait()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        self._ask({"work": True})
        yield

    async def read(self) -> None:
        """Take the lines of the process. Raises an error when it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            match line.split():
                case [b"stored"]:
                    self._stored.set()
                case [number, at]:
                    self._executed(int(number), float(at))
        raise RuntimeError("node has ended")

    def _ask(self, asked: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")


@asynccontextmanager
async def _open(url: str, executed: Executed) -> AsyncIterator[Queue]:
    pipe = asyncio.subprocess.PIPE
    arguments = (urlsplit(url).hostname or "", str(urlsplit(url).port), str(_CONCURRENCY))
    process = await asyncio.create_subprocess_exec(
        "node",
        str(_PROGRAM),
        *arguments,
        stdin=pipe,
        stdout=pipe,
        env={**os.environ, "NODE_PATH": str(_PACKAGES)},
        limit=_LINE_BYTES,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            queue = BullQueue(process, executed)
            reading = tasks.create_task(queue.read())
            yield queue
            reading.cancel()
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    main(_open)
