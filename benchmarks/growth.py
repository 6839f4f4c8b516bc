"""What timers cost while they wait, and how fast retention deletes them. The timers are written into the database."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client

from benchmarks.harness import Rig, read_events, stored_events, until_none
from benchmarks.processes import BenchmarkError, Fleet
from benchmarks.records import Result
from benchmarks.sender import frame, send_frames
from benchmarks.stores.store import Filling, call
from benchmarks.timers import Timer, faults, now

_DAY_MS = 24 * 3_600_000
_FEW = 10_000
_SETTLE_SECONDS = 2
_IDLE_SECONDS = 20
_POLLS = 500
_DUPLICATES_SECONDS = 1
_RETAINED_DAYS = 8
_FIRED = 20_000
"""How many timers are scheduled and fire at once beside the waiting ones."""

Cost = Mapping[tuple[str, str], float]
"""Figures by their names and units."""


_MEMORY = ("resident memory", "MiB")
_POLL = ("a poll's queries, p50", "ms")
_RATE = ("timers that are scheduled and fire at once", "timers/s")


async def pending(rig: Rig, size: int) -> Result:
    """Measure what 10,000 waiting timers cost, and then what `size` of them cost."""
    few, problems = await _cost(rig, 0, _FEW)
    many, more_problems = await _cost(rig, _FEW, size)
    figures = {
        "timers pending": size,
        **{f"{name} with {_FEW:,} pending, {unit}": few[name, unit] for name, unit in few},
        **{f"{name}, {unit}": many[name, unit] for name, unit in many},
        "a poll's queries, times those with 10,000": many[_POLL] / few[_POLL],
        "resident memory, times that with 10,000": many[_MEMORY] / few[_MEMORY],
        "timers/s, times those with 10,000": many[_RATE] / few[_RATE],
    }
    return Result(figures, problems + more_problems)


async def idle(rig: Rig, size: int) -> Result:
    """Measure the processor time of a service that has nothing to do, without timers and with `size` waiting ones."""
    nothing = await _idle(rig)
    await rig.store.fill(Filling(0, size, now() + _DAY_MS))
    waiting = await _idle(rig)
    figures = {
        "CPU seconds per idle minute, nothing pending": nothing,
        "timers pending": size,
        "CPU seconds per idle minute, all these pending": waiting,
    }
    return Result(figures)


async def retention(rig: Rig, size: int) -> Result:
    """Let the service delete timers that fired eight days ago. Measure the rows per second."""
    fired_at = now() - _RETAINED_DAYS * _DAY_MS
    async with _service(rig):
        pass
    await rig.store.fill(Filling(0, size, fired_at - 1000, fired_at))
    async with _service(rig) as (_, service):
        rows, started = await rig.store.rows(), time.time()
        seconds = await until_none(service, rig.store.rows) - started
        left = await rig.store.rows()
    figures = {"rows": rows, "seconds": seconds, "rows deleted/s": rows / seconds}
    return Result(figures, [f"{left} rows were not deleted"] if left else [])


async def _cost(rig: Rig, present: int, size: int) -> tuple[Cost, list[str]]:
    """Return figures with `size` timers, of which `present` exist, and the problems."""
    async with _service(rig):
        pass  # the service creates the tables
    await rig.store.fill(Filling(present, size - present, now() + _DAY_MS))
    async with rig.broker("default") as client, rig.service() as service:
        await asyncio.sleep(_SETTLE_SECONDS)
        if (rows := await rig.store.rows()) < size:
            raise BenchmarkError(f"there are {rows} timers instead of {size}")
        one = {"serviceCallId": call(size // 2)}
        cost = {
            _MEMORY: max(service.resident_bytes()) / 2**20,
            _POLL: await _median(rig.store.poll, _POLLS),
            ("get-timer, p50", "ms"): await _query_time(client, "get-timer", one, 200),
            ("list-timers of 100, p50", "ms"): await _query_time(client, "list-timers", {"limit": 100}, 100),
            ("count-timers, p50", "ms"): await _query_time(client, "count-timers", {}, 5),
            ("database", "bytes per timer"): await rig.store.size() / rows,
        }
        rate, problems = await _fire(rig, client, service, size)
    return {**cost, _RATE: rate}, problems


async def _fire(rig: Rig, client: Client, service: Fleet, size: int) -> tuple[float, list[str]]:
    """Schedule timers that are due at once, with ids among the waiting ones. Return how many fire per second."""
    rng = random.Random(size)
    timers = [Timer("bench", f"{call(rng.randrange(size))}-{size}-{n}", now()) for n in range(_FIRED)]
    frames = [frame(each.subject, {"Nats-Msg-Id": each.id}, each.body()) for each in timers]
    before = await stored_events(client)

    async def missing() -> int:
        return before + _FIRED - await stored_events(client)

    started = time.time()
    await send_frames(rig.port, frames)
    seconds = await until_none(service, missing) - started
    await asyncio.sleep(_DUPLICATES_SECONDS)
    return _FIRED / seconds, faults(timers, (await read_events(client))[before:])


async def _idle(rig: Rig) -> float:
    """Return the processor seconds per minute, of all instances."""
    async with _service(rig) as (_, service):
        await asyncio.sleep(_SETTLE_SECONDS)
        used = service.cpu_seconds()
        await asyncio.sleep(_IDLE_SECONDS)
        return (service.cpu_seconds() - used) * 60 / _IDLE_SECONDS


@asynccontextmanager
async def _service(rig: Rig) -> AsyncIterator[tuple[Client, Fleet]]:
    async with rig.broker() as client, rig.service() as service:
        yield client, service


async def _query_time(client: Client, query: str, request: dict[str, Any], times: int) -> float:
    """Return the median time of a query, in ms."""

    async def ask() -> None:
        answer = await client.request(f"timer.qry.v1.bench.{query}", json.dumps(request).encode(), timeout=20)
        if b'"error"' in answer.data[:10]:
            raise BenchmarkError(f"{query}: {answer.data.decode()}")

    return await _median(ask, times)


async def _median(act: Callable[[], Awaitable[None]], times: int) -> float:
    """Return the median time of `act`, in ms."""
    times_ms: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        await act()
        times_ms.append(1000 * (time.perf_counter() - started))
    return statistics.median(times_ms)
