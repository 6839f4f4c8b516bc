"""What the programs of the peers share: a queue with jobs that do nothing, and what is counted about its jobs.

    python -m benchmarks.peers.<NAME>_program ADDRESS JOBS SECONDS

runs in the environment of the peers, so it imports nothing of the service. It prints one line of JSON.
A process of its own stores the jobs with a due time, as a client does.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

_RATE = 200
_AHEAD_MS = (2000, 5000)
_TURN_SECONDS = 0.002  # more jobs than one are stored in a turn, if storing takes longer than the rate allows
_STORE = "store"
_POLL_SECONDS = 0.02
_DUPLICATES_SECONDS = 1
_PATIENCE_SECONDS = 20
"""How long no job may be executed before the rest counts as missing."""


class Execution(NamedTuple):
    """A job that was executed, and when, in epoch milliseconds."""

    number: int
    at: float


class Queue(Protocol):
    """A peer. Its job takes a number, and calls `executed` with it."""

    async def store(self, numbers: Sequence[int]) -> None:
        """Store jobs that are due at once."""
        ...

    async def store_due(self, due: Mapping[int, float]) -> None:
        """Store jobs with their due times, in epoch milliseconds."""
        ...

    def worker(self) -> AbstractAsyncContextManager[None]:
        """Run a worker until the block ends."""
        ...


class Executed(Protocol):
    """Called with each job that is executed."""

    def __call__(self, number: int, at: float = 0, /) -> None:
        """`at`: when, in epoch milliseconds; 0: now."""
        ...


OpenQueue = Callable[[str, Executed], AbstractAsyncContextManager[Queue]]
"""Opens a queue by its address, which may have been opened before. The second argument is `executed`."""


def main(open_queue: OpenQueue) -> None:
    """Measure a peer and print the figures."""
    address, jobs, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    numbers = range(jobs, jobs + _RATE * seconds)
    if sys.argv[4:] == [_STORE]:
        print(json.dumps(asyncio.run(_store_timely(open_queue, address, numbers))))
    else:
        print(json.dumps(asyncio.run(_measure(open_queue, address, jobs, len(numbers)))))


async def _measure(open_queue: OpenQueue, address: str, jobs: int, more: int) -> dict[str, float]:
    executions: list[Execution] = []

    def executed(number: int, at: float = 0, /) -> None:
        executions.append(Execution(number, at or time.time_ns() / 1_000_000))

    async with open_queue(address, executed) as queue:
        await queue.store(range(jobs))
        async with queue.worker():
            await _until_executed(executions, jobs)
            drained = list(executions)
            storing = await asyncio.create_subprocess_exec(*sys.orig_argv, _STORE, stdout=asyncio.subprocess.PIPE)
            output, _ = await storing.communicate()
            due: dict[int, float] = dict(json.loads(output))
            await _until_executed(executions, jobs + more, max(due.values()))
            await asyncio.sleep(_DUPLICATES_SECONDS)
    return {**drain_figures(drained), **lag_figures(executions, due), **fault_figures(executions, due, jobs)}


async def _store_timely(open_queue: OpenQueue, address: str, numbers: Sequence[int]) -> list[tuple[int, float]]:
    """Store jobs at a steady rate, each due at a random instant in the near future. The service is measured so too.

    Returns their due times.
    """
    due: dict[int, float] = {}
    rng = random.Random(1)
    async with open_queue(address, lambda _number, _at=0: None) as queue:
        begin = time.time()
        while len(due) < len(numbers):
            ahead = begin + len(due) / _RATE - time.time()
            if ahead > _TURN_SECONDS:
                await asyncio.sleep(ahead)
            count = max(1, int((time.time() - begin) * _RATE) - len(due))
            now = time.time_ns() // 1_000_000
            some = {number: now + rng.randint(*_AHEAD_MS) for number in numbers[len(due) : len(due) + count]}
            await queue.store_due(some)
            due |= some
    return list(due.items())


async def _until_executed(executions: Sequence[Execution], count: int, begin: float = 0) -> None:
    """Wait until so many jobs were executed, or none has been for a while. `begin`: when the first one is due."""
    seen, since = len(executions), max(time.time(), begin / 1000)
    while len(executions) < count and time.time() - since < _PATIENCE_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        if len(executions) != seen:
            seen, since = len(executions), max(time.time(), begin / 1000)


def drain_figures(executions: Sequence[Execution]) -> dict[str, float]:
    times = [each.at for each in executions]
    seconds = (max(times) - min(times)) / 1000
    return {"drain_seconds": seconds, "jobs_per_second": (len(times) - 1) / seconds}


def lag_figures(executions: Sequence[Execution], due: Mapping[int, float]) -> dict[str, float]:
    late = sorted(each.at - due[each.number] for each in executions if each.number in due)
    if not late:
        return {}
    return {f"lag_p{percent}_ms": late[math.ceil(percent * len(late) / 100) - 1] for percent in (50, 99)}


def fault_figures(executions: Sequence[Execution], due: Mapping[int, float], jobs: int) -> dict[str, float]:
    times = Counter(each.number for each in executions)
    return {
        "missing": jobs + len(due) - len(times),
        "duplicate": times.total() - len(times),
        "early": sum(each.at < due[each.number] for each in executions if each.number in due),
    }


async def in_portions(numbers: Sequence[int], size: int, store: Callable[[Sequence[int]], Awaitable[object]]) -> None:
    """Store jobs so many at a time."""
    for start in range(0, len(numbers), size):
        await store(numbers[start : start + size])


async def at_a_time(count: int, calls: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run calls, so many at a time."""
    slots = asyncio.Semaphore(count)

    async def run(call: Coroutine[Any, Any, object]) -> None:
        async with slots:
            await call

    await asyncio.gather(*map(run, calls))
