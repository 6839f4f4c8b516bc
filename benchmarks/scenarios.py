"""The scenarios. Each counts only the events on the broker, and reports problems with them."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.brokers import broker_and_user, load
from benchmarks.growth import idle, pending, retention
from benchmarks.harness import Rig, TooLateError, unhandled, unhandled_of, until_begun, until_none
from benchmarks.measure import Drained, measure_drain, measure_fair, measure_lag
from benchmarks.nats_scheduler import nats_accept, nats_drain, nats_fair, nats_lag
from benchmarks.peers.scenarios import PEERS, dbos, queue_scenario
from benchmarks.records import Result
from benchmarks.runs import runs
from benchmarks.schedules import crons, intervals
from benchmarks.sender import frame, send_frames
from benchmarks.signals import signals
from benchmarks.timers import Timer, due_together, now, sleep_until
from benchmarks.workflows import starts, steps, workflows
from timer_service.dev_server import BrokerKind

_DUPLICATES_SECONDS = 1
"""How long to wait for duplicate events."""
_HOUR_MS = 3_600_000
_LAG_RATE = 200
_BOTH = ("sqlite", "postgres")


async def ingest(rig: Rig, size: int) -> Result:
    """Store commands while no service runs. Start it, and measure from its first commit to its last."""
    await load(rig, due_together("bench", size, now() + 24 * _HOUR_MS))
    async with broker_and_user(rig) as (server, user):
        stored = await user.commands()
        waiting = await unhandled_of(rig, stored)
        async with rig.service(ready=False) as service:
            began = await until_begun(rig, service)
            before = server.cpu_seconds()
            seconds = await until_none(service, partial(unhandled_of, rig, stored)) - began.at
            used = service.cpu_seconds() - began.cpu_seconds, server.cpu_seconds() - before
    rows = await rig.store.rows()
    figures = {
        "commands": size,
        "seconds from the first commit to the last": seconds,
        "commands/s": (size - began.handled) / seconds,
        **_processor_time(*used, size - began.handled),
        "database, bytes per timer": await rig.store.size() / size,
    }
    problems = [] if rows == size else [f"{size} commands wrote {rows} rows"]
    if waiting != size:
        problems.append(f"{waiting} of {size} commands were in the stream before the service started")
    return Result(figures, problems)


async def drain(rig: Rig, size: int) -> Result:
    """Schedule timers for one instant. Measure how fast their events are published."""
    return await measure_drain(rig, size, _fire_together)


async def fair(rig: Rig, size: int) -> Result:
    """Schedule many timers of one tenant and one timer of another for one instant. Measure how late the one is."""
    return await measure_fair(rig, size, _fire_together)


async def accept(rig: Rig, size: int) -> Result:
    """Send commands as fast as the broker takes them. Measure the time until the service has committed all of them."""
    timers = due_together("bench", size, now() + 24 * _HOUR_MS)
    frames = [frame(each.subject, {"Nats-Msg-Id": each.id}, each.body()) for each in timers]
    async with rig.broker() as client, rig.service() as service:
        started = time.time()
        stored = await send_frames(rig.port, frames)
        seconds = await until_none(service, partial(unhandled, rig, client)) - started
    rows = await rig.store.rows()
    figures = {
        "commands": size,
        "seconds from the first command to the last acknowledgement of the broker": stored,
        "seconds from the first command to the last commit": seconds,
        "commands/s": size / seconds,
    }
    return Result(figures, [] if rows == size else [f"{size} commands wrote {rows} rows"])


async def lag(rig: Rig, seconds: int, rate: int = _LAG_RATE) -> Result:
    """Schedule timers for random instants at a steady rate. Measure how late each event arrives at a subscriber."""
    async with broker_and_user(rig) as (server, user), rig.service() as service:
        before = service.cpu_seconds(), server.cpu_seconds()
        measured = await measure_lag(await user.sender(), service, rate, seconds, listen=user.listen)
        used = service.cpu_seconds() - before[0], server.cpu_seconds() - before[1]
        return Result({**measured.figures, **_processor_time(*used, rate * seconds)}, measured.problems)


class Scenario(NamedTuple):
    """A scenario with its default size and its full size."""

    run: Callable[[Rig, int], Coroutine[Any, Any, Result]]
    size: int
    full: int
    seconds: int
    """About how long it takes with the default size."""
    stores: tuple[str, ...] = _BOTH
    brokers: tuple[str, ...] = ("nats",)
    """Those with which it runs; empty if it has none."""


def _peer(name: str, size: int, full: int, seconds: int) -> Scenario:
    peer = PEERS[name]
    return Scenario(queue_scenario(name), size, full, seconds, (peer.store,), (peer.broker,) if peer.broker else ())


_EACH = tuple(BrokerKind)
_SQLITE = ("sqlite",)
"""The store of scenarios without the service and without a database."""

SCENARIOS = {
    "ingest": Scenario(ingest, 50_000, 500_000, 8, _BOTH, _EACH),
    "accept": Scenario(accept, 50_000, 500_000, 10),
    "drain": Scenario(drain, 50_000, 200_000, 18, _BOTH, _EACH),
    "lag": Scenario(lag, 8, 60, 16, _BOTH, _EACH),
    "lag-2000": Scenario(partial(lag, rate=2000), 8, 60, 16),
    "fair": Scenario(fair, 20_000, 100_000, 10),
    "signals": Scenario(signals, 15, 60, 20),
    "runs": Scenario(runs, 300, 1000, 8),
    "intervals": Scenario(intervals, 20_000, 100_000, 40),
    "crons": Scenario(crons, 20_000, 100_000, 45),
    "workflows": Scenario(workflows, 5000, 20_000, 11),
    "starts": Scenario(starts, 15, 60, 22),
    "steps": Scenario(steps, 1000, 5000, 5),
    "pending": Scenario(pending, 1_000_000, 10_000_000, 24),
    "idle": Scenario(idle, 1_000_000, 1_000_000, 60),
    "retention": Scenario(retention, 50_000, 500_000, 8),
    "nats-accept": Scenario(nats_accept, 50_000, 500_000, 7, _SQLITE),
    "nats-drain": Scenario(nats_drain, 50_000, 200_000, 17, _SQLITE),
    "nats-lag": Scenario(nats_lag, 8, 60, 15, _SQLITE),
    "nats-lag-2000": Scenario(partial(nats_lag, rate=2000), 8, 60, 15, _SQLITE),
    "nats-fair": Scenario(nats_fair, 20_000, 100_000, 11, _SQLITE),
    "pgqueuer": _peer("pgqueuer", 50_000, 200_000, 17),
    "procrastinate": _peer("procrastinate", 2000, 10_000, 20),
    "saq": _peer("saq", 3000, 15_000, 20),
    "huey": _peer("huey", 5000, 25_000, 20),
    "faststream-redis-timers": _peer("faststream-redis-timers", 3000, 15_000, 20),
    "arq": _peer("arq", 3000, 15_000, 20),
    "saq-redis": _peer("saq-redis", 3000, 15_000, 20),
    "bullmq": _peer("bullmq", 10_000, 50_000, 20),
    "celery": _peer("celery", 3000, 15_000, 25),
    "dbos": Scenario(dbos, 300, 5000, 8, _SQLITE, ()),
}


async def _fire_together(rig: Rig, timers: Sequence[Timer]) -> Drained:
    """Schedule timers for one instant, and wait for their events."""
    await load(rig, timers)
    due_at = timers[0].due_at
    async with broker_and_user(rig) as (server, user), rig.service() as service:

        async def missing() -> int:
            return len(timers) - await user.events()

        await until_none(service, partial(unhandled_of, rig, await user.commands()))
        if now() >= due_at:
            raise TooLateError(f"this machine did not store {len(timers)} timers before they were due")
        await sleep_until(due_at)
        before = service.cpu_seconds(), server.cpu_seconds()
        seconds = await until_none(service, missing) - due_at / 1000
        used = service.cpu_seconds() - before[0], server.cpu_seconds() - before[1]
        await asyncio.sleep(_DUPLICATES_SECONDS)
        return Drained(await user.read_events(), seconds, _processor_time(*used, len(timers)))


def _processor_time(service: float, server: float, commands: int) -> dict[str, float]:
    """Return figures of the processor time in seconds of all instances, and of the server of the broker."""
    return {
        "processor time of the service, µs per command": 1e6 * service / commands,
        "processor time of the server, µs per command": 1e6 * server / commands,
    }
