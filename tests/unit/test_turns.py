"""The turns of long work."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from timer_service.core.ports import turns
from timer_service.core.ports.turns import TransactionTime, Turns


@asynccontextmanager
async def counted_runs() -> AsyncIterator[Callable[[], int]]:
    """Yield a function that returns how often another task has run since the block began."""
    runs = 0

    async def other() -> None:
        nonlocal runs
        while True:
            runs += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    yield lambda: runs
    task.cancel()


@pytest.mark.parametrize(("size", "seconds", "others"), [(1, 0.0, 0), (60, 0.0, 3), (1, 0.0008, 1)])
async def test_others_run(size: int, seconds: float, others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run if the messages of a turn have too many bytes, or take more than 1 ms."""
    now = 0.0
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: now))
    work = Turns(100)
    async with counted_runs() as runs:
        for _ in range(4):
            await work.take(size)
            now += seconds
        assert runs() == others


@pytest.mark.parametrize(
    ("seconds", "pauses", "slept"), [(0.02, True, 0.02), (600, True, 0.5), (0.02, False, 0), (0.002, True, 0)]
)
async def test_others_run_for_as_long(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *, pauses: bool, slept: float
) -> None:
    """With pauses, other tasks run after a message that took more than 5 ms, for as long as it took.

    After a turn in which the process was stopped for minutes, the pause is short.
    """
    now = 0.0
    sleeps: list[float] = []

    async def sleep(delay: float) -> None:
        sleeps.append(delay)

    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(turns, "asyncio", SimpleNamespace(sleep=sleep))
    work = Turns(100, pauses=pauses)
    await work.take(1)
    now += seconds
    await work.take(0)
    assert sleeps == [slept]


async def test_time_of_a_transaction() -> None:
    """A handler applies one command at least, and no more after 50 ms. Other tasks run every millisecond."""
    now = 0.0
    time = TransactionTime(lambda: now)
    found = []
    async with counted_runs() as runs:
        for seconds in (0.0008, 0.0008, 0.0008, 0.03, 0.02):
            found.append(await time.is_left())
            now += seconds
        assert (found, await time.is_left(), runs()) == ([True] * 5, False, 2)
