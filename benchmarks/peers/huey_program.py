"""huey on SQLite. See `jobs`. Its scheduler looks once a second."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from huey import SqliteHuey

from benchmarks.peers.jobs import Queue, main

_WORKERS = 1
_POLL_SECONDS = 0.01


class HueyQueue:
    def __init__(self, huey: SqliteHuey, executed: Callable[[int], None]) -> None:
        self._huey = huey

        @huey.task()
        def noop(number: int) -> None:
            executed(number)

        self._task = noop

    async def store(self, numbers: Sequence[int]) -> None:
        await asyncio.to_thread(lambda: [self._task(each) for each in numbers])

    async def store_due(self, due: Mapping[int, float]) -> None:
        def store() -> None:
            for number, at in due.items():
                self._task.schedule((number,), eta=datetime.fromtimestamp(at / 1000, UTC))

        await asyncio.to_thread(store)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        consumer = self._huey.create_consumer(
            workers=_WORKERS, initial_delay=_POLL_SECONDS, max_delay=_POLL_SECONDS, check_worker_health=False
        )
        consumer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(consumer.stop, graceful=True)


@asynccontextmanager
async def _open(folder: str, executed: Callable[[int], None]) -> AsyncIterator[Queue]:
    yield HueyQueue(SqliteHuey(filename=str(Path(folder) / "huey.db")), executed)


if __name__ == "__main__":
    main(_open)
