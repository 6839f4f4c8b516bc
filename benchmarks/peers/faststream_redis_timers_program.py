"""faststream-redis-timers. See `jobs`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from faststream_redis_timers import TimersBroker
from redis.asyncio import Redis

from benchmarks.peers.jobs import Executed, Queue, at_a_time, main

_CONCURRENCY = 100
_POLL_SECONDS = 0.01  # how soon it looks again; the default is 0.05 s, and up to 5 s when nothing was due for a while


class TimersQueue:
    def __init__(self, broker: TimersBroker, executed: Executed) -> None:
        self._broker = broker

        @broker.subscriber(
            "noop", max_concurrent=_CONCURRENCY, polling_interval=_POLL_SECONDS, max_polling_interval=_POLL_SECONDS
        )
        async def noop(number: int) -> None:
            executed(number)

    async def store(self, numbers: Sequence[int]) -> None:
        await at_a_time(_CONCURRENCY, (self._broker.publish(number, topic="noop") for number in numbers))

    async def store_due(self, due: Mapping[int, float]) -> None:
        instants = {number: datetime.fromtimestamp(at / 1000, UTC) for number, at in due.items()}
        timers = (self._broker.publish(number, topic="noop", activate_at=at) for number, at in instants.items())
        await at_a_time(_CONCURRENCY, timers)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        await self._broker.start()
        try:
            yield
        finally:
            await self._broker.stop()


@asynccontextmanager
async def _open(url: str, executed: Executed) -> AsyncIterator[Queue]:
    async with Redis.from_url(url) as client:
        broker = TimersBroker(client, logger=None)
        await broker.connect()
        yield TimersQueue(broker, executed)


if __name__ == "__main__":
    main(_open)
