"""pgqueuer on PostgreSQL. See `jobs`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from time import time

import asyncpg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from benchmarks.peers.jobs import Queue, in_portions, main

_STORED_AT_ONCE = 1000
_BATCH_SIZE = 1000
_DEQUEUE_TIMEOUT = timedelta(milliseconds=10)  # how soon it looks again; the default, 30 s, would be its lag


class PgqueuerQueue:
    def __init__(self, url: str, driver: AsyncpgDriver, executed: Callable[[int], None]) -> None:
        self._url = url
        self._queries = Queries(driver)
        self._executed = executed

    async def store(self, numbers: Sequence[int]) -> None:
        await in_portions(numbers, _STORED_AT_ONCE, lambda some: self._enqueue(dict.fromkeys(some)))

    async def store_due(self, due: Mapping[int, float]) -> None:
        # Stored a little later than computed, so the delay is never too short.
        await self._enqueue({each: timedelta(seconds=at / 1000 - time()) for each, at in due.items()})

    async def _enqueue(self, delays: Mapping[int, timedelta | None]) -> None:
        payloads = [str(each).encode() for each in delays]
        count = len(delays)
        await self._queries.enqueue(["noop"] * count, payloads, [0] * count, list(delays.values()))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(self._url)
        queuer = PgQueuer.from_asyncpg_connection(connection)

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            self._executed(int(job.payload or b""))

        running = asyncio.create_task(queuer.run(dequeue_timeout=_DEQUEUE_TIMEOUT, batch_size=_BATCH_SIZE))
        try:
            yield
        finally:
            queuer.shutdown.set()
            await running


@asynccontextmanager
async def _open(url: str, executed: Callable[[int], None]) -> AsyncIterator[Queue]:
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    if not await queries.has_table(queries.qbe.settings.queue_table):
        await queries.install()
    yield PgqueuerQueue(url, driver, executed)
    await connection.close()


if __name__ == "__main__":
    main(_open)
