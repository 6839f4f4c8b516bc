"""Programs whose steps and handlers ignore their cancellation: attempts end in time, and SIGTERM ends the process."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.harness import stubborn
from tests.harness.processes import NatsServer, Process, Service
from tests.harness.receiving import publisher
from tests.harness.spawn import TIMER_SERVICE
from timer_service.client import TimerClient
from timer_service.sigterm import CLOSE_SECONDS

pytestmark = pytest.mark.slow

GRACE = 1 + CLOSE_SECONDS
"""The programs have a `shutdown_timeout` of a second."""
SLACK = 3
"""How long the log and the end of a process may take on a busy machine."""
FUNCTIONS = [f"tests.harness.stubborn:{each}" for each in ("stubborn", "blocking")]

WORKER = """
import asyncio
from datetime import timedelta
from tests.harness import stubborn
from timer_service.worker import Worker

async def main():
    workflows = [stubborn.stubborn, stubborn.endless, stubborn.blocking]
    await Worker(tenant="acme", workflows=workflows, shutdown_timeout=timedelta(seconds=1)).run()
    print("the worker has ended", flush=True)

asyncio.run(main())
"""

APP = """
import os
import time
from datetime import timedelta
from tests.harness import stubborn
from timer_service.client import TimerApp

app = TimerApp(tenant="acme", name="orders", shutdown_timeout=timedelta(seconds=1), concurrency=50)

@app.on_due("async")
async def handle(event):
    os.write(1, f"begun {event.timer_id}\\n".encode())  # whole, whatever another thread prints
    await {**stubborn.WAYS, **stubborn.IN_THREADS}[event.timer_id]()

@app.on_due("thread")
def hang(event):
    os.write(1, f"begun {event.timer_id}\\n".encode())  # whole, whatever another thread prints
    time.sleep(10_000)

@app.on_due("blocking")
async def block(event):
    os.write(1, f"begun {event.timer_id}\\n".encode())  # whole, whatever another thread prints
    time.sleep(10_000)

app.run()
print("the app has ended", flush=True)
"""


class Program(Process):
    """A program of a user."""

    def __init__(self, folder: Path, broker: NatsServer, *command: str) -> None:
        environment = {"TIMER_BROKER_URL": broker.url, "PYTHONPATH": str(Path.cwd())}
        super().__init__([*command], folder / "program.log", environment)
        self.log.touch()
        self.launch()

    @property
    def text(self) -> str:
        return self.log.read_text()

    async def until_prints(self, *texts: str) -> None:
        await self._until(lambda: all(text in self.text for text in texts))

    async def end(self) -> tuple[int, float]:
        """Send SIGTERM. Return the exit code, and how long it took."""
        began = time.monotonic()
        code = await self.terminate()
        return code, time.monotonic() - began


async def start(client: TimerClient, kind: str, *ways: object) -> list[str]:
    """Start a workflow for each way. Return their ids."""
    ids = [f"{kind}-{way}" for way in ways]
    await asyncio.gather(
        *(client.workflows.start("acme", each, kind, way) for each, way in zip(ids, ways, strict=True))
    )
    return ids


async def until_failed(client: TimerClient, *ids: str) -> None:
    for each in ids:
        while (found := await client.workflows.get("acme", each)) is None or found.workflow.status != "failed":
            await asyncio.sleep(0.05)
        assert found.failure is not None
        assert found.failure.message.endswith(f"TimeoutError: no result within {stubborn.SECONDS} s")


@ON_SQLITE
async def test_attempts_end_at_their_timeouts(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """Whatever the steps do, each attempt ends at its timeout, others go on, and SIGTERM ends the idle worker."""
    command = [TIMER_SERVICE, "worker", "acme", *FUNCTIONS]
    async with Program(tmp_path, broker, *command) as worker, TimerClient.connect(broker.url) as client:
        began = time.monotonic()
        async with asyncio.timeout(60):
            await until_failed(client, *await start(client, "stubborn", *stubborn.WAYS, *stubborn.IN_THREADS))
            assert time.monotonic() - began < stubborn.SECONDS + 10
            await until_failed(client, *await start(client, "blocking", 1))  # it blocks longer than its timeout
        lines = [f"the step {way} of the workflow stubborn-{way} has" for way in ("loops", "sleeps_in_a_thread")]
        await worker.until_prints(*lines, "of the workflow stubborn-returns_later has returned a result")
        _, seconds = await worker.end()
        assert seconds < GRACE + SLACK
        assert "steps have not ended" not in worker.text  # there was no task


@ON_SQLITE
async def test_sigterm_ends_a_worker(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """Its steps are in progress, and ignore their cancellation. The log names them, and the workflows are released."""
    ways = [*stubborn.WAYS, *stubborn.IN_THREADS]
    async with (
        Program(tmp_path, broker, sys.executable, "-c", WORKER) as worker,
        TimerClient.connect(broker.url) as client,
    ):
        async with asyncio.timeout(60):
            for each in await start(client, "endless", *ways):
                while (found := await client.workflows.get("acme", each)) is None or found.workflow.status != "running":
                    await asyncio.sleep(0.05)
        _, seconds = await worker.end()
        assert seconds < GRACE + SLACK
        assert "the worker has ended" in worker.text
        for way in ways:
            assert f"the step {way} of the workflow endless-{way}" in worker.text
            found = await client.workflows.get("acme", f"endless-{way}")
            assert found is not None
            assert (found.workflow.status, found.workflow.attempt) == ("waiting", 0)


@ON_SQLITE
async def test_sigterm_ends_a_worker_that_is_blocked(tmp_path: Path, broker: NatsServer, service: Service) -> None:
    """A step blocks the event loop, so nothing can stop in order. The process ends, and the log names the step."""
    async with (
        Program(tmp_path, broker, sys.executable, "-c", WORKER) as worker,
        TimerClient.connect(broker.url) as client,
    ):
        await start(client, "blocking", stubborn.LONG)
        await worker.until_prints("blocks", "(the step block of the workflow blocking-10000.0) has run for 5 s")
        code, seconds = await worker.end()
        assert (code, GRACE - 1 < seconds < GRACE + SLACK) == (1, True)
        text = "the process does not end; ending it. Still running: the step block of the workflow blocking-10000.0"
        assert text in worker.text
        assert "time.sleep(seconds)" in worker.text


async def test_sigterm_ends_an_app(tmp_path: Path, broker: NatsServer) -> None:
    """Its handlers ignore their cancellation: their events come again later."""
    async with (
        publisher(broker.url) as events,
        Program(tmp_path, broker, sys.executable, "-c", APP) as app,
    ):
        await app.until_prints("waiting for")
        for way in stubborn.WAYS:
            await events.fire(way, topic="async")
        await events.fire("hang", topic="thread")
        await app.until_prints(*(f"begun {way}\n" for way in (*stubborn.WAYS, "hang")))
        code, seconds = await app.end()
        assert (code, seconds < GRACE + SLACK) == (0, True)
        assert "handlers have not ended" in app.text
        assert "the handler of the DueTimeReached event-loops of timer loops has not ended" in app.text
        assert app.text.endswith("the app has ended\n")
        app.launch()
        await app.until_prints("waiting for")
        await events.fire("block", topic="blocking")
        await app.until_prints("begun block\n")
        code, seconds = await app.end()
        assert (code, seconds < GRACE + SLACK) == (1, True)
        assert "Still running: the handler of the DueTimeReached event-block of timer block" in app.text
