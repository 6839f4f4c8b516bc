"""Celery on RabbitMQ, with `eta`. See `jobs`."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from celery import Celery
from celery.contrib.testing.worker import start_worker

from benchmarks.peers.jobs import Executed, Queue, main

_CONCURRENCY = 4


class CeleryQueue:
    def __init__(self, app: Celery, executed: Executed) -> None:
        self._app = app

        @app.task(name="noop", ignore_result=True)
        def noop(number: int) -> None:
            executed(number)

        self._task = noop

    async def store(self, numbers: Sequence[int]) -> None:
        await self._store(dict.fromkeys(numbers))

    async def store_due(self, due: Mapping[int, float]) -> None:
        await self._store({number: datetime.fromtimestamp(at / 1000, UTC) for number, at in due.items()})

    async def _store(self, etas: Mapping[int, datetime | None]) -> None:
        def store(number: int) -> None:
            self._task.apply_async((number,), eta=etas[number])

        with ThreadPoolExecutor(_CONCURRENCY) as threads:
            await asyncio.to_thread(lambda: [*threads.map(store, etas)])

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        worker = start_worker(self._app, concurrency=_CONCURRENCY, pool="threads", perform_ping_check=False)
        await asyncio.to_thread(worker.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(worker.__exit__, None, None, None)


@asynccontextmanager
async def _open(url: str, executed: Executed) -> AsyncIterator[Queue]:
    app = Celery("bench", broker=url.partition("?")[0].replace("://", "://guest:guest@") + "//")
    # A message is stored before `apply_async` returns, as with the service.
    app.conf.update(broker_transport_options={"confirm_publish": True}, task_acks_late=True)
    yield CeleryQueue(app, executed)


if __name__ == "__main__":
    main(_open)
