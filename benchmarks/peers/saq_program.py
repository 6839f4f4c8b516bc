"""saq on PostgreSQL or Redis. See `jobs`. Its due times are whole seconds, so jobs get the next one."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import saq
from saq.types import Context

from benchmarks.peers.jobs import Queue, at_a_time, main

_CONCURRENCY = 100
_POLL_SECONDS = 0.01


class SaqQueue:
    def __init__(self, queue: saq.Queue, executed: Callable[[int], None]) -> None:
        self._queue = queue
        self._executed = executed

    async def store(self, numbers: Sequence[int]) -> None:
        await self._enqueue(dict.fromkeys(numbers, 0))

    async def store_due(self, due: Mapping[int, float]) -> None:
        await self._enqueue({number: math.ceil(at / 1000) for number, at in due.items()})

    async def _enqueue(self, scheduled: Mapping[int, int]) -> None:
        jobs = (self._queue.enqueue("noop", number=number, scheduled=at) for number, at in scheduled.items())
        await at_a_time(_CONCURRENCY, jobs)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        async def noop(_: Context, *, number: int) -> None:
            self._executed(number)

        worker: saq.Worker[Context] = saq.Worker(
            self._queue, [("noop", noop)], concurrency=_CONCURRENCY, poll_interval=_POLL_SECONDS
        )
        worker.SIGNALS = []
        running = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            await worker.stop()
            running.cancel()
            await asyncio.wait([running])


@asynccontextmanager
async def _open(url: str, executed: Callable[[int], None]) -> AsyncIterator[Queue]:
    queue = saq.Queue.from_url(url)
    await queue.connect()
    yield SaqQueue(queue, executed)
    await queue.disconnect()


if __name__ == "__main__":
    main(_open)
