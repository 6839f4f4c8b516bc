"""procrastinate on PostgreSQL. See `jobs`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import procrastinate

from benchmarks.peers.jobs import Queue, in_portions, main

_STORED_AT_ONCE = 1000
_CONCURRENCY = 50
_POLL_SECONDS = 0.01  # how soon it looks again; the default, 5 s, would be its lag


class ProcrastinateQueue:
    def __init__(self, app: procrastinate.App, executed: Callable[[int], None]) -> None:
        self._app = app

        @app.task(name="noop")
        async def noop(number: int) -> None:
            executed(number)

        self._task = noop

    async def store(self, numbers: Sequence[int]) -> None:
        async def store(some: Sequence[int]) -> None:
            await self._task.batch_defer_async(*({"number": each} for each in some))

        await in_portions(numbers, _STORED_AT_ONCE, store)

    async def store_due(self, due: Mapping[int, float]) -> None:
        slots = asyncio.Semaphore(_CONCURRENCY)

        async def store(number: int, at: float) -> None:
            async with slots:
                due_at = datetime.fromtimestamp(at / 1000, UTC)
                await self._task.configure(schedule_at=due_at).defer_async(number=number)

        await asyncio.gather(*(store(number, at) for number, at in due.items()))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        running = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=_CONCURRENCY, fetch_job_polling_interval=_POLL_SECONDS, install_signal_handlers=False
            )
        )
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])


@asynccontextmanager
async def _open(url: str, executed: Callable[[int], None]) -> AsyncIterator[Queue]:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    async with app.open_async():
        if not await app.check_connection_async():  # whether the schema is there
            await app.schema_manager.apply_schema_async()
        yield ProcrastinateQueue(app, executed)


if __name__ == "__main__":
    main(_open)
