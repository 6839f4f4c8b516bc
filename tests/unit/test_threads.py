"""The threads of a worker: they may hang, and neither other steps nor the end of the worker wait for them."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.harness.workers import virtually, worker
from tests.harness.workflow_service import MemoryService
from timer_service import threads
from timer_service.threads import Ended, Threads
from timer_service.worker import Context, Retry, workflow
from timer_service.worker.steps import run_attempt
from timer_service.worker.values import StepCall


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event for which functions of a test hang. They end after the test."""
    found = threading.Event()
    yield found
    found.set()


async def test_hung_threads_are_bounded(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was given up leaves its place to another one, but only so many do. Its end leaves no second place."""
    monkeypatch.setattr(threads, "MOST_HUNG", 2)
    pool = Threads(1)
    began: list[int] = []
    calls = [asyncio.ensure_future(pool.run(gate.wait, lambda: began.append(1))) for _ in range(5)]
    for hung in (1, 2, 3):
        async with asyncio.timeout(10):
            while len(began) < hung:
                await asyncio.sleep(0)
        calls[hung - 1].cancel()
        await asyncio.wait(calls[:hung])
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(began) == 3
    gate.set()
    async with asyncio.timeout(10):
        assert [each.value for each in await asyncio.gather(*calls[3:])] == [True, True]
    for thread in threading.enumerate():
        if thread.name.startswith("step-"):
            thread.join(timeout=10)
    gate.clear()
    calls = [asyncio.ensure_future(pool.run(gate.wait, lambda: began.append(1))) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(began) == 6
    calls[0].cancel()
    await asyncio.wait(calls[:1])
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(began) == 7  # the earlier ones have ended, so this one may leave its place
    gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*calls[1:])


@virtually
async def test_the_wait_for_a_thread_is_no_part_of_the_timeout() -> None:
    """A step that waits for a free thread longer than its timeout has not failed."""

    class Busy(Threads):
        async def run(self, function: Callable[[], Any], on_begin: Callable[[], None]) -> Ended:
            await asyncio.sleep(100)
            on_begin()
            await asyncio.sleep(1)
            return Ended(function())

    for timeout, text in ((5, "7"), (0.5, "null")):
        call = StepCall(lambda: 7, (), timeout, None, contextvars.copy_context())
        attempt = await run_attempt(call, Busy(1))
        assert (attempt.text, attempt.error is None) == (text, text == "7")


async def test_a_worker_with_hung_steps_goes_on(gate: threading.Event) -> None:
    """Hung steps of one workflow use up no slot of another one, and the worker stops without waiting for them."""

    @workflow("hang")
    async def hang(ctx: Context, _: Any) -> None:
        await ctx.step("hang", gate.wait, timeout=timedelta(milliseconds=5), retry=Retry(max_attempts=3))

    @workflow("quick")
    async def quick(ctx: Context, _: Any) -> Any:
        return await ctx.step("quick", lambda: "quick")

    service = MemoryService(retry_seconds=0)
    for number in range(4):
        service.start(f"h-{number}", "hang")
    async with worker(service, hang, quick, slots=2, wait_seconds=0.1, shutdown_seconds=0.2), asyncio.timeout(20):
        await service.until_ended()
        service.start("q", "quick")
        await service.until_ended("q")
    assert service.rows["q"].end["result"] == "quick"
    assert [service.rows[f"h-{number}"].end["step"] for number in range(4)] == ["hang"] * 4


PROGRAM = """
import asyncio, time
from tests.harness.workers import worker
from tests.harness.workflow_service import MemoryService
from timer_service.worker import workflow

@workflow("hang")
async def hang(ctx, _):
    await ctx.step("hang", time.sleep, 120)

async def main():
    service = MemoryService()
    row = service.start("h", "hang")
    async with worker(service, hang, wait_seconds=0.1, shutdown_seconds=0.1) as drain:
        while row.status != "running":
            await asyncio.sleep(0.01)
        await drain()
    print(row.status)

asyncio.run(main())
"""


def test_a_process_with_a_hung_thread_ends() -> None:
    """The process of a worker that has stopped ends although a thread still works on a step."""
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "waiting\n"
