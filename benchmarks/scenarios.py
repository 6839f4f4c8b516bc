"""The scenarios. Each counts only the events on the broker, and reports problems with them."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.growth import idle, pending, retention
from benchmarks.harness import (
    COMMANDS,
    EVENTS,
    Rig,
    TooLateError,
    ask,
    load,
    read_events,
    stored_events,
    unhandled,
    until_begun,
    until_none,
)
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

_DUPLICATES_SECONDS = 1
"""How long to wait for duplicate events."""
_HOUR_MS = 3_600_000
_LAG_RATE = 200


async def ingest(rig: Rig, size: int) -> Result:
    """Store commands while no service runs. Start it, and measure from its first commit to its last."""
    await load(rig, due_together("bench", size, now() + 24 * _HOUR_MS))
    async with rig.broker() as client:
        waiting = await unhandled(rig, client)
        async with rig.service(ready=False) as service:
            began = await until_begun(rig, service)
            seconds = await until_none(service, partial(unhandled, rig, client)) - began.at
            used = service.cpu_seconds() - began.cpu_seconds
        stream_bytes = (await ask(client, f"STREAM.INFO.{COMMANDS}"))["state"]["bytes"]
    rows = await rig.store.rows()
    figures = {
        "commands": size,
        "seconds from the first commit to the last": seconds,
        "commands/s": (size - began.handled) / seconds,
        "CPU seconds, all instances": used,
        "database, bytes per timer": await rig.store.size() / size,
        "stream of commands, bytes per command": stream_bytes / size,
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
        stored = await send_frames(rig.nats_port, frames)
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
    async with rig.broker() as client, rig.service() as service:
        return await measure_lag(
            client, service, rate, seconds, subscribe=lambda arrive: client.subscribe("timer.evt.v1.>", cb=arrive)
        )


class Scenario(NamedTuple):
    """A scenario with its default size and its full size."""

    run: Callable[[Rig, int], Coroutine[Any, Any, Result]]
    size: int
    full: int
    seconds: int
    """About how long it takes with the default size."""
    stores: tuple[str, ...] = ("sqlite", "postgres")
    broker: bool = True
    """Whether it has a broker, so that its `sync_interval` matters."""


def _peer(name: str, size: int, full: int, seconds: int) -> Scenario:
    return Scenario(queue_scenario(name), size, full, seconds, (PEERS[name].store,), broker=False)


_SQLITE = ("sqlite",)
"""The store of scenarios without the service and without a database."""

SCENARIOS = {
    "ingest": Scenario(ingest, 50_000, 500_000, 8),
    "accept": Scenario(accept, 50_000, 500_000, 10),
    "drain": Scenario(drain, 50_000, 200_000, 18),
    "lag": Scenario(lag, 8, 60, 16),
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
    "dbos": Scenario(dbos, 300, 5000, 8, _SQLITE, broker=False),
}


async def _fire_together(rig: Rig, timers: Sequence[Timer]) -> Drained:
    """Schedule timers for one instant, and wait for their events."""
    await load(rig, timers)
    due_at = timers[0].due_at
    async with rig.broker() as client, rig.service() as service:

        async def missing() -> int:
            return len(timers) - await stored_events(client)

        await until_none(service, partial(unhandled, rig, client))
        if now() >= due_at:
            raise TooLateError(f"this machine did not store {len(timers)} timers before they were due")
        await sleep_until(due_at)
        used = service.cpu_seconds()
        seconds = await until_none(service, missing) - due_at / 1000
        used = service.cpu_seconds() - used
        await asyncio.sleep(_DUPLICATES_SECONDS)
        stream_bytes = (await ask(client, f"STREAM.INFO.{EVENTS}"))["state"]["bytes"]
        more = {
            "CPU seconds, all instances": used,
            "stream of events, bytes per event": stream_bytes / len(timers),
        }
        return Drained(await read_events(client), seconds, more)
