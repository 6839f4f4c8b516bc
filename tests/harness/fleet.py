"""Instances of the service, as processes that share a database."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

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
        """Add an instance without starting it."""
        folder = self._folder / f"instance-{len(self.instances)}"
        service = Service(folder, self._broker.url, TIMER_DATABASE_URL=self._database_url, **settings)
        self.instances.append(service)
        return service

    @asynccontextmanager
    async def running(self, count: int, **settings: str) -> AsyncIterator[Sequence[Service]]:
        """Run `count` instances, started at the same time."""
        async with AsyncExitStack() as stack:
            instances = [self.instance(**settings) for _ in range(count)]
            for each in instances:
                stack.push_async_exit(each)
            await asyncio.gather(*(each.start() for each in instances))
            yield instances

    async def count_fired(self) -> list[float]:
        """Return the number of timers that each instance fired since its start."""
        return [await each.metric(FIRED) for each in self.instances]
