"""arq on Redis. See `jobs`."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from arq import ArqRedis, Worker, create_pool, func
from arq.connections import RedisSettings

from benchmarks.peers.jobs import Executed, Queue, at_a_time, main

_CONCURRENCY = 100
_POLL_SECONDS = 0.01  # how soon it looks again; the default, 0.5 s, would be its lag


class ArqQueue:
    def __init__(self, redis: ArqRedis, executed: Executed) -> None:
        self._redis = redis
        self._executed = executed

    async def store(self, numbers: Sequence[int]) -> None:
        await at_a_time(_CONCURRENCY, (self._redis.enqueue_job("noop", number) for number in numbers))

    async def store_due(self, due: Mapping[int, float]) -> None:
        instants = {number: datetime.fromtimestamp(at / 1000, UTC) for number, at in due.items()}
        jobs = (self._redis.enqueue_job("noop", number, _defer_until=at) for number, at in instants.items())
        await at_a_time(_CONCURRENCY, jobs)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        async def noop(_: Mapping[str, Any], number: int) -> None:
            self._executed(number)

        worker = Worker(
            [func(noop, name="noop", keep_result=0)],
            redis_pool=self._redis,
            max_jobs=_CONCURRENCY,
            poll_delay=_POLL_SECONDS,
            handle_signals=False,
        )
        running = asyncio.create_task(worker.async_run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])


@asynccontextmanager
async def _open(url: str, executed: Executed) -> AsyncIterator[Queue]:
    redis = await create_pool(RedisSettings.from_dsn(url))
    yield ArqQueue(redis, executed)
    await redis.aclose()


if __name__ == "__main__":
    main(_open)
