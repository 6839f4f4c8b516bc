"""A whole instance in this process: the app with a SQLite file, its HTTP pages, and a broker in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from tests.harness.memory_broker import MemoryBroker, MemoryRequests
from tests.harness.processes import read_page, unused_port
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.service import App
from timer_service.app.storage import Storage
from timer_service.config import Config
from timer_service.core.due.loop import Pass
from timer_service.core.ports.broker import ReceiveRequest
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.service.clock_repair import ClockReader
from timer_service.core.values.address import Kind
from timer_service.metrics import Metrics
from timer_service.supervisor import NO_SUPERVISOR, Supervisor


class Streams:
    """The upkeep of the streams. A test sets the health."""

    def __init__(self) -> None:
        self.health: dict[Kind, Health] = dict.fromkeys(Kind, HEALTHY)
        self.checks = 0

    keeps_events_for = None

    def name(self, kind: Kind) -> str:
        return f"TIMER_{kind}".upper()

    async def tick(self, now: int) -> Pass:  # noqa: ARG002 - part of the protocol
        self.checks += 1
        return Pass(0)


class InstanceBroker(MemoryBroker):
    """A broker in memory with everything that an instance needs. It records what the instance asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = Streams()
        self.reading = True
        self.steps: list[str] = []
        """What the instance has begun and ended, in order."""
        self.serving = asyncio.Event()
        self.connected: tuple[Any, ...] = ()
        """The arguments of `connect`, if a test records them."""
        self.served: dict[Kind, set[str]] = {}
        """The names of the queries and of the requests."""
        self.lost = asyncio.get_running_loop().create_future()

    async def serve(self, kind: Kind, names: Sequence[str], receive: ReceiveRequest) -> MemoryRequests:
        self.served[kind] = set(names)
        return await super().serve(kind, names, receive)

    async def wait_lost(self) -> str:
        self.serving.set()  # the instance waits for its end last
        reason: str = await self.lost
        return reason

    async def close(self) -> None:
        self.steps.append("broker closed")


class Instance:
    """An instance that a test starts and stops."""

    def __init__(self, database: SqliteDatabase, clock: Clock, **settings: Any) -> None:
        self.database = database
        self.clock = clock
        self.broker = InstanceBroker()
        self.registry = CollectorRegistry()
        self.config = Config.model_validate({"http_port": unused_port(), "shutdown_timeout": 10_000, **settings})
        self.app = App(
            self.config,
            Storage(database, clock, {"clock": ClockReader(clock), "file": database.files}),
            self.broker,
            Metrics(self.registry),
            self.registry,
        )
        self.drains = 0
        """How many times the instance said that it drains."""

    @asynccontextmanager
    async def running(self, supervisor: Supervisor = NO_SUPERVISOR) -> AsyncIterator[asyncio.Task[None]]:
        """Run the instance until the end of the block. The block may end it earlier. Yields its task."""
        task = asyncio.create_task(self.app.run(supervisor, on_draining=self._drain))
        waiting = asyncio.create_task(self.broker.serving.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            yield task
        finally:
            self.app.stop()
            await asyncio.wait([task])

    def passes(self, loop: str) -> float:
        """Return how many passes a loop has done."""
        return self.registry.get_sample_value("timer_polling_duration_seconds_count", {"loop": loop}) or 0

    async def page(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the content of a page."""
        status, text = await asyncio.to_thread(read_page, self.config.http_port, path)
        return status, json.loads(text)

    def _drain(self) -> None:
        self.drains += 1
