"""Instances of the service as processes that share a database."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg

from tests.harness.processes import NatsServer, Service

FIRED = 'timer_schedules_processed_total{outcome="fired",table="timer_schedules"}'


class Fleet:
    """Instances of the service that share a broker and a database."""

    def __init__(self, folder: Path, broker: NatsServer, database_url: str) -> None:
        self._folder = folder
        self._broker = broker
        self._database_url = database_url
        self.instances: list[Service] = []

    def instance(self, **settings: str) -> Service:
        """Make one more, not yet started."""
        folder = self._folder / f"instance-{len(self.instances)}"
        service = Service(folder, self._broker.url, TIMER_DATABASE_URL=self._database_url, **settings)
        self.instances.append(service)
        return service

    @asynccontextmanager
    async def running(self, count: int, **settings: str) -> AsyncIterator[Sequence[Service]]:
        """Run so many, all of them started at the same time."""
        async with AsyncExitStack() as stack:
            several = [self.instance(**settings) for _ in range(count)]
            for each in several:
                stack.push_async_exit(each)
            await asyncio.gather(*(each.start() for each in several))
            yield several

    async def claimed_again(self) -> int:
        """Count the timers that were claimed more than once: those that may have been published twice."""
        connection = await asyncpg.connect(self._database_url)
        try:
            count: int = await connection.fetchval("SELECT count(*) FROM timer_schedules WHERE attempt > 1")
        finally:
            await connection.close()
        return count

    async def let_leases_lapse(self) -> None:
        """Have events that were with a killed instance claimed anew at once, instead of when its leases run out."""
        connection = await asyncpg.connect(self._database_url)
        try:
            await connection.execute("UPDATE outbox SET available_at = added_at WHERE lease_token IS NOT NULL")
        finally:
            await connection.close()

    async def fired(self) -> list[float]:
        """Return how many timers each has fired since it was started."""
        return [await each.metric(FIRED) for each in self.instances]
