"""What is measured. Each scenario counts only what came out on the broker, and says what is wrong with it."""

import asyncio
import json
import math
import random
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import (
    BenchmarkError,
    Fired,
    Process,
    Publisher,
    Rig,
    Signal,
    Timer,
    Transition,
    fired,
    load,
    now,
    read_events,
    stored_events,
    unhandled,
)
from benchmarks.report import Result
from timer_service.timers.store import TIMERS

_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 30
_AFTERMATH_SECONDS = 1
"""How long to look on for events that come twice."""
_HOUR_MS = 3_600_000
_IDLE_SECONDS = 30
_LAG_RATE = 200
_TRANSITIONS_RATE = 100
_LAG_AHEAD_MS = (2000, 5000)


async def ingest(rig: Rig, size: int) -> Result:
    """Have commands waiting in the stream; start the service; see how fast they are committed."""
    timers = _due_together("bench", size, now() + 24 * _HOUR_MS)
    await load(rig, timers)
    async with rig.broker() as client, rig.service() as service:
        left = partial(unhandled, client)
        first_at, others = await _poll(service, left, size - 1)
        last_at, _ = await _poll(service, left, 0)
    with closing(sqlite3.connect(rig.database)) as database:
        (rows,) = database.execute("SELECT count(*) FROM timer_schedules").fetchone()
    # What was committed before the first look is left out, with its time: it holds the start of the process.
    figures = {
        "commands": size,
        "of them handled when first looked at": size - others,
        "seconds for the others, give or take a poll of 10 ms": last_at - first_at,
        "commands/s": others / (last_at - first_at),
    }
    return Result("ingest", figures, [] if rows == size else [f"{size} commands gave {rows} rows"])


async def drain(rig: Rig, size: int) -> Result:
    """Let timers fall due at one instant; see how fast their events come out."""
    timers = _due_together("bench", size, _soon(size))
    events, seconds = await _fire_together(rig, timers)
    figures = {
        "timers": size,
        "seconds from the instant to the last event": seconds,
        "timers/s": size / seconds,
        **_lateness(timers, events, (0.5, 0.99)),
    }
    return Result("drain", figures, _faults(timers, events))


async def fair(rig: Rig, size: int) -> Result:
    """Let one tenant's flood and another's single timer fall due at one instant; see how late the single one is."""
    due_at = _soon(size)
    single = _due_together("single", 1, due_at)
    timers = _due_together("flood", size, due_at) + single
    events, seconds = await _fire_together(rig, timers)
    late = [event.at - due_at for event in events if event.tenant == "single"]
    figures = {
        "timers of the flood": size,
        "seconds from the instant to the last event": seconds,
        "lateness of the other tenant's timer, ms": late[0] if late else math.nan,
    }
    return Result("fair", figures, _faults(timers, events))


async def lag(rig: Rig, seconds: int) -> Result:
    """Keep a steady rate of timers due at random instants; see how late each event arrives at a subscriber."""
    arrived: list[tuple[bytes, float]] = []

    async def arrive(message: Msg) -> None:
        arrived.append((message.data, time.time_ns() / 1_000_000))

    async def missing() -> int:
        return len(timers) - len(arrived)

    async with rig.broker() as client, rig.service() as service:
        await rig.ready(service)
        await client.subscribe("timer.evt.v1.>", cb=arrive)
        timers = await _schedule_steadily(client, _LAG_RATE * seconds)
        await _sleep_until(max(timer.due_at for timer in timers))
        await _poll(service, missing, 0)
        await asyncio.sleep(_AFTERMATH_SECONDS)
    events = [fired(body, at) for body, at in arrived]
    figures = {
        "timers": len(timers),
        "timers/s, scheduled 2 to 5 s ahead": _LAG_RATE,
        **_lateness(timers, events, (0.5, 0.99, 0.999, 1)),
    }
    return Result("lag", figures, _faults(timers, events))


async def signals(rig: Rig, seconds: int) -> Result:
    """Keep a steady rate of transitions that each fire a signal; see how late the event arrives at a subscriber."""
    arrived: list[tuple[str, float]] = []
    waiting = [Signal(f"signal-{index}") for index in range(_TRANSITIONS_RATE * seconds)]

    async def arrive(message: Msg) -> None:
        arrived.append((json.loads(message.data)["payload"]["signalId"], time.time_ns() / 1_000_000))

    async def missing() -> int:
        return len(waiting) - len(arrived)

    async with rig.broker() as client, rig.service() as service:
        await rig.ready(service)
        publisher = Publisher(client)
        await publisher.open()
        for signal in waiting:
            await publisher.send(signal)
        await publisher.flush()
        await _poll(service, partial(unhandled, client), 0)
        await client.subscribe("timer.evt.v1.*.work-signal-fired", cb=arrive)
        published = await _block_steadily(publisher, waiting)
        await _poll(service, missing, 0)
        await asyncio.sleep(_AFTERMATH_SECONDS)
    late = [at - published[name] for name, at in arrived]
    figures = {
        "transitions": len(waiting),
        "transitions/s, each fires one signal": _TRANSITIONS_RATE,
        **_percentiles("from TransitionWorkItem to work.signal.fired", late, (0.5, 0.99, 1)),
    }
    times = Counter(name for name, _ in arrived)
    faults = {"missing": len(waiting) - len(times), "doubled": times.total() - len(times)}
    return Result("signals", figures, [f"{count} events {fault}" for fault, count in faults.items() if count])


async def _block_steadily(publisher: Publisher, waiting: Sequence[Signal]) -> dict[str, float]:
    """Send a transition for each signal at `_TRANSITIONS_RATE`; return when each was sent, in epoch milliseconds."""
    start = time.time()
    sent: dict[str, float] = {}
    for index, signal in enumerate(waiting):
        await asyncio.sleep(max(0.0, start + index / _TRANSITIONS_RATE - time.time()))
        sent[signal.name] = time.time_ns() / 1_000_000
        await publisher.send(Transition(signal))
    await publisher.flush()
    return sent


async def pending(rig: Rig, size: int) -> Result:
    """Have timers of one tenant pending for tomorrow; see what they cost while they wait, and what questions cost."""
    tomorrow = now() + 24 * _HOUR_MS
    await load(rig, [Timer("bench", f"call-{index}", tomorrow + index) for index in range(size)])
    async with rig.broker() as client, rig.service() as service:
        await rig.ready(service)
        await _poll(service, partial(unhandled, client), 0)
        counted = json.loads((await client.request("timer.qry.v1.bench.count-timers", timeout=10)).data)
        used = service.cpu_seconds()
        await asyncio.sleep(_IDLE_SECONDS)
        idle = (service.cpu_seconds() - used) / _IDLE_SECONDS
        figures = {
            "timers pending": size,
            "resident memory, MiB": service.resident_bytes() / 2**20,
            "CPU seconds per idle minute": 60 * idle,
            "a poll's queries, p50, ms": _poll_cost(rig),
            "get-timer, p50, ms": await _asking(client, "get-timer", {"serviceCallId": f"call-{size // 2}"}, 200),
            "list-timers of 100, p50, ms": await _asking(client, "list-timers", {"limit": 100}, 100),
            "count-timers, p50, ms": await _asking(client, "count-timers", {}, 10),
        }
    problems = [] if counted["counts"]["Scheduled"] == size else [f"{size} timers were counted as {counted}"]
    return Result("pending", figures, problems)


async def _asking(client: Client, query: str, question: dict[str, Any], times: int) -> float:
    """Return the median of how long a query takes, in ms."""
    took: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        answer = await client.request(f"timer.qry.v1.bench.{query}", json.dumps(question).encode(), timeout=10)
        took.append(1000 * (time.perf_counter() - started))
        if b'"error"' in answer.data[:10]:
            raise BenchmarkError(f"{query}: {answer.data.decode()}")
    return statistics.median(took)


def _poll_cost(rig: Rig) -> float:
    """Return the median time, in ms, of what a poll that finds nothing due asks the database."""
    count, peek = TIMERS.sql("count_available"), TIMERS.sql("next_available")
    took: list[float] = []
    with closing(sqlite3.connect(f"file:{rig.database}?mode=ro", uri=True)) as database:
        for _ in range(200):
            started = time.perf_counter()
            database.execute(count, {"now": now(), "limit": 1001}).fetchall()
            database.execute(peek).fetchall()
            took.append(1000 * (time.perf_counter() - started))
    return statistics.median(took)


class Scenario(NamedTuple):
    """What to run, and how much of it."""

    run: Callable[[Rig, int], Coroutine[Any, Any, Result]]
    size: int
    full: int


SCENARIOS = {
    "ingest": Scenario(ingest, 50_000, 500_000),
    "drain": Scenario(drain, 50_000, 200_000),
    "lag": Scenario(lag, 15, 60),
    "fair": Scenario(fair, 20_000, 100_000),
    "signals": Scenario(signals, 15, 60),
    "pending": Scenario(pending, 100_000, 1_000_000),
}


def _due_together(tenant: str, count: int, due_at: int) -> list[Timer]:
    return [Timer(tenant, f"call-{index}", due_at) for index in range(count)]


def _soon(size: int) -> int:
    """Return an instant that leaves time to store `size` timers first, even on a slow machine."""
    return now() + 15_000 + size // 4


async def _fire_together(rig: Rig, timers: Sequence[Timer]) -> tuple[list[Fired], float]:
    """Store timers due at one instant; return their events and the seconds from the instant to the last."""
    await load(rig, timers)
    due_at = timers[0].due_at
    async with rig.broker() as client, rig.service() as service:

        async def missing() -> int:
            return len(timers) - await stored_events(client)

        await _poll(service, partial(unhandled, client), 0)
        if now() >= due_at:
            raise BenchmarkError(f"this machine could not store {len(timers)} timers before they were due")
        await _sleep_until(due_at)
        await _poll(service, missing, 0)
        seconds = time.time() - due_at / 1000
        await asyncio.sleep(_AFTERMATH_SECONDS)
        return await read_events(client), seconds


async def _schedule_steadily(client: Client, count: int) -> list[Timer]:
    """Send commands at `_LAG_RATE`, each due at a random instant a little ahead; return them."""
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


async def _sleep_until(at: int) -> None:
    await asyncio.sleep(max(0.0, at / 1000 - time.time()))


async def _poll(service: Process, count: Callable[[], Awaitable[int]], enough: int) -> tuple[float, int]:
    """Wait until `count` is down to `enough` or stands still for long; return when that was seen, and the count.

    What is missing in the end is told by the checks.
    """
    seen, since = await count(), time.monotonic()
    while seen > enough and time.monotonic() - since < _PATIENCE_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        service.check()
        before, seen = seen, await count()
        if seen != before:
            since = time.monotonic()
    return time.monotonic(), seen


def _lateness(timers: Sequence[Timer], events: Iterable[Fired], shares: Sequence[float]) -> dict[str, float]:
    """Return percentiles by name; a share of 1 is the latest of all."""
    due = {(timer.tenant, timer.call): timer.due_at for timer in timers}
    late = [event.at - due[event.tenant, event.call] for event in events if event[1:3] in due]
    return _percentiles("lateness", late, shares)


def _percentiles(what: str, late: Iterable[float], shares: Sequence[float]) -> dict[str, float]:
    ordered = sorted(late)
    names = {share: f"p{share * 100:g}" if share < 1 else "max" for share in shares}
    return {
        f"{what} {name}, ms": ordered[math.ceil(share * len(ordered)) - 1] for share, name in names.items() if ordered
    }


def _faults(timers: Sequence[Timer], events: Sequence[Fired]) -> list[str]:
    """Say what is missing, doubled, early or was never asked for."""
    due = {(timer.tenant, timer.call): timer.due_at for timer in timers}
    fires = [event for event in events if event.type == "DueTimeReached" and (event.tenant, event.call) in due]
    times = Counter((event.tenant, event.call) for event in fires)
    counts = {
        "missing": len(due.keys() - times.keys()),
        "doubled": sum(count - 1 for count in times.values()),
        "early": sum(event.at < due[event.tenant, event.call] for event in fires),
        "unasked for": len(events) - len(fires),
    }
    return [f"{count} events {fault}" for fault, count in counts.items() if count]
