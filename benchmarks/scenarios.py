"""The scenarios. Each counts only the events on the broker, and reports problems with them."""

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.bloat import bloat
from benchmarks.dbos_peer import dbos
from benchmarks.harness import (
    Publisher,
    Rig,
    load,
    pause_commands,
    read_events,
    stored_events,
    unhandled,
    until_delivered,
    until_none,
)
from benchmarks.processes import BenchmarkError
from benchmarks.report import Result
from benchmarks.runs import runs
from benchmarks.scheduler import scheduler
from benchmarks.schedules import crons, intervals, slots
from benchmarks.signals import signals
from benchmarks.timers import Fired, Timer, due_together, faults, fired, lateness, now, sleep_until, soon
from benchmarks.workflows import polls, sleeps, starts, steps, workflows

_DUPLICATES_SECONDS = 1
"""How long to wait for duplicate events."""
_HOUR_MS = 3_600_000
_IDLE_SECONDS = 30
_LAG_RATE = 200
_LAG_AHEAD_MS = (2000, 5000)


async def ingest(rig: Rig, size: int) -> Result:
    """Store commands while their delivery is paused. Resume it when the service is ready, and measure the commits."""
    await load(rig, due_together("bench", size, now() + 24 * _HOUR_MS))
    async with rig.broker() as client:
        await pause_commands(client, until=datetime.now(UTC) + timedelta(hours=1))
        async with rig.service() as service:
            waiting = await unhandled(client)
            used = service.cpu_seconds()
            await pause_commands(client, until=None)
            started = await until_delivered(client)
            seconds = await until_none(service, partial(unhandled, client)) - started
            used = service.cpu_seconds() - used
    rows = await rig.store.rows()
    figures = {
        "commands": size,
        "seconds from the first delivery to the last commit": seconds,
        "commands/s": size / seconds,
        "CPU seconds, all instances": used,
    }
    problems = [] if rows == size else [f"{size} commands wrote {rows} rows"]
    if waiting != size:
        problems.append(f"{size - waiting} of {size} commands were handled before the delivery was resumed")
    return Result("ingest", figures, problems)


async def drain(rig: Rig, size: int) -> Result:
    """Schedule timers for one instant. Measure how fast their events are published."""
    timers = due_together("bench", size, soon(size))
    events, seconds = await _fire_together(rig, timers)
    figures = {
        "timers": size,
        "seconds from the instant to the last event": seconds,
        "timers/s": size / seconds,
        **lateness(timers, events, (0.5, 0.99)),
    }
    return Result("drain", figures, faults(timers, events))


async def fair(rig: Rig, size: int) -> Result:
    """Schedule many timers of one tenant and one timer of another for one instant. Measure how late the one is."""
    due_at = soon(size)
    single = due_together("single", 1, due_at)
    timers = due_together("flood", size, due_at) + single
    events, seconds = await _fire_together(rig, timers)
    late = [event.at - due_at for event in events if event.tenant == "single"]
    figures = {
        "timers of the first tenant": size,
        "seconds from the instant to the last event": seconds,
        "lateness of the other tenant's timer, ms": late[0] if late else math.nan,
    }
    return Result("fair", figures, faults(timers, events))


async def lag(rig: Rig, seconds: int) -> Result:
    """Schedule timers for random instants at a steady rate. Measure how late each event arrives at a subscriber."""
    arrived: list[tuple[bytes, float]] = []

    async def arrive(message: Msg) -> None:
        arrived.append((message.data, time.time_ns() / 1_000_000))

    async def missing() -> int:
        return len(timers) - len(arrived)

    async with rig.broker() as client, rig.service() as service:
        await client.subscribe("timer.evt.v1.>", cb=arrive)
        timers = await _schedule_steadily(client, _LAG_RATE * seconds)
        await sleep_until(max(timer.due_at for timer in timers))
        await until_none(service, missing)
        await asyncio.sleep(_DUPLICATES_SECONDS)
    events = [fired(body, at) for body, at in arrived]
    figures = {
        "timers": len(timers),
        "timers/s, scheduled 2 to 5 s ahead": _LAG_RATE,
        **lateness(timers, events, (0.5, 0.99, 0.999, 1)),
    }
    return Result("lag", figures, faults(timers, events))


async def pending(rig: Rig, size: int) -> Result:
    """Schedule timers of one tenant for tomorrow. Measure their cost while they wait, and the cost of queries."""
    tomorrow = now() + 24 * _HOUR_MS
    await load(rig, [Timer("bench", f"call-{index}", tomorrow + index) for index in range(size)])
    async with rig.broker() as client, rig.service() as service:
        await until_none(service, partial(unhandled, client))
        counted = json.loads((await client.request("timer.qry.v1.bench.count-timers", timeout=10)).data)
        used = service.cpu_seconds()
        await asyncio.sleep(_IDLE_SECONDS)
        idle = (service.cpu_seconds() - used) / _IDLE_SECONDS
        resident = [each / 2**20 for each in service.resident_bytes()]
        figures = {
            "timers pending": size,
            "resident memory, the largest instance, MiB": max(resident),
            "resident memory, all instances, MiB": sum(resident),
            "CPU seconds per idle minute, all instances": 60 * idle,
            "a poll's queries, p50, ms": await _median(rig.store.poll, 200),
            "get-timer, p50, ms": await _query_time(client, "get-timer", {"serviceCallId": f"call-{size // 2}"}, 200),
            "list-timers of 100, p50, ms": await _query_time(client, "list-timers", {"limit": 100}, 100),
            "count-timers, p50, ms": await _query_time(client, "count-timers", {}, 10),
        }
    problems = [] if counted["counts"]["Scheduled"] == size else [f"{size} timers were counted as {counted}"]
    return Result("pending", figures, problems)


async def _query_time(client: Client, query: str, request: dict[str, Any], times: int) -> float:
    """Return the median time of a query, in ms."""

    async def ask() -> None:
        answer = await client.request(f"timer.qry.v1.bench.{query}", json.dumps(request).encode(), timeout=10)
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


class Scenario(NamedTuple):
    """A scenario with its default size and its full size."""

    run: Callable[[Rig, int], Coroutine[Any, Any, Result]]
    size: int
    full: int
    stores: tuple[str, ...] = ("sqlite", "postgres")


SCENARIOS = {
    "ingest": Scenario(ingest, 50_000, 500_000),
    "drain": Scenario(drain, 50_000, 200_000),
    "lag": Scenario(lag, 15, 60),
    "fair": Scenario(fair, 20_000, 100_000),
    "signals": Scenario(signals, 15, 60),
    "runs": Scenario(runs, 300, 1000),
    "intervals": Scenario(intervals, 20_000, 100_000),
    "crons": Scenario(crons, 20_000, 100_000),
    "slots": Scenario(slots, 15, 60),
    "workflows": Scenario(workflows, 5000, 20_000),
    "starts": Scenario(starts, 15, 60),
    "steps": Scenario(steps, 1000, 5000),
    "sleeps": Scenario(sleeps, 15, 60),
    "polls": Scenario(polls, 30, 120),
    "dbos": Scenario(dbos, 1000, 5000, ("sqlite",)),
    "pending": Scenario(pending, 100_000, 1_000_000),
    "scheduler": Scenario(scheduler, 50_000, 200_000, ("sqlite",)),
    "bloat": Scenario(bloat, 100_000, 1_000_000, ("postgres",)),
}


async def _fire_together(rig: Rig, timers: Sequence[Timer]) -> tuple[list[Fired], float]:
    """Schedule timers for one instant. Return their events, and the seconds from the instant to the last event."""
    await load(rig, timers)
    due_at = timers[0].due_at
    async with rig.broker() as client, rig.service() as service:

        async def missing() -> int:
            return len(timers) - await stored_events(client)

        await until_none(service, partial(unhandled, client))
        if now() >= due_at:
            raise BenchmarkError(f"this machine did not store {len(timers)} timers before they were due")
        await sleep_until(due_at)
        seconds = await until_none(service, missing) - due_at / 1000
        await asyncio.sleep(_DUPLICATES_SECONDS)
        return await read_events(client), seconds


async def _schedule_steadily(client: Client, count: int) -> list[Timer]:
    """Publish timers at `_LAG_RATE`, each due at a random instant in the near future. Return the timers."""
    rng = random.Random(1)
    publisher = Publisher(client)
    await publisher.open()
    start = time.time()
    timers: list[Timer] = []
    for index in range(count):
        await asyncio.sleep(max(0.0, start + index / _LAG_RATE - time.time()))
        timer = Timer("bench", f"call-{index}", now() + rng.randint(*_LAG_AHEAD_MS))
        await publisher.send(timer)
        timers.append(timer)
    await publisher.flush()
    return timers
