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
from timer_service.worker import Context, Retry, threads, workflow
from timer_service.worker.steps import run_attempt
from timer_service.worker.threads import Ended, Threads
from timer_service.worker.values import StepCall


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event for which functions of a test hang. They end after the test."""
    found = threading.Event()
    yield found
    found.set()


def nothing() -> None:
    """Do nothing."""


async def test_a_hung_thread_is_replaced(gate: threading.Event) -> None:
    """A thread whose call was given up is counted as hung, and another one works in its place until it ends."""
    pool = Threads(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pool.run(gate.wait, nothing)
    assert pool.hung == 1
    assert (await pool.run(lambda: 7, nothing)).value == 7
    gate.set()
    async with asyncio.timeout(10):
        while pool.hung:
            await asyncio.sleep(0)
    names = {(await pool.run(lambda: threading.current_thread().name, nothing)).value for _ in range(3)}
    assert names == {"step-2"}
    pool.stop()


async def test_a_thread_without_a_timeout_is_replaced(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that takes very long makes room for another one. If it ends after all, its result counts."""
    monkeypatch.setattr(threads, "HUNG_SECONDS", 0.01)
    pool = Threads(1)
    long = asyncio.ensure_future(pool.run(gate.wait, nothing))
    await asyncio.sleep(0)
    monkeypatch.setattr(threads, "HUNG_SECONDS", 60)
    async with asyncio.timeout(10):
        assert (await pool.run(lambda: 7, nothing)).value == 7
        assert pool.hung == 1
        gate.set()
        assert (await long).value is True
    assert pool.hung == 0
    pool.stop()


async def test_hung_threads_are_bounded(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than so many hung threads are replaced. A thread that ends makes room for the next."""
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
    assert (len(began), pool.hung) == (3, 3)
    gate.set()
    async with asyncio.timeout(10):
        assert [each.value for each in await asyncio.gather(*calls[3:])] == [True, True]
    pool.stop()


async def test_a_call_begins_when_a_thread_is_free(gate: threading.Event) -> None:
    """A call that waits for a thread has not begun."""
    pool, began = Threads(1), list[int]()
    first = asyncio.ensure_future(pool.run(gate.wait, lambda: began.append(1)))
    second = asyncio.ensure_future(pool.run(lambda: 7, lambda: began.append(2)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert began == [1]
    gate.set()
    await asyncio.gather(first, second)
    assert began == [1, 2]
    pool.stop()


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


async def test_a_worker_with_hung_steps_goes_on_and_stops(gate: threading.Event) -> None:
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


async def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system has no thread, the call waits. The step has not failed."""

    def start(thread: threading.Thread) -> None:
        starts.append(1)
        if len(starts) < 3:
            raise RuntimeError("can't start new thread")
        real_start(thread)

    starts: list[int] = []
    real_start = threading.Thread.start
    monkeypatch.setattr(threads, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(threading.Thread, "start", start)
    pool = Threads(1)
    async with asyncio.timeout(10):
        assert (await pool.run(lambda: 7, nothing)).value == 7
    assert len(starts) == 3
    pool.stop()


PROGRAM = """
import asyncio, time
from tests.harness.workers import virtually, worker
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
