"""What is measured in the same way for the service and for nats-server: how fast timers fire, and how late."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.brokers import Sender
from benchmarks.harness import Command, Rig, until_none
from benchmarks.processes import Fleet
from benchmarks.records import Result
from benchmarks.timers import Fired, Timer, due_together, faults, fired, lateness, now, sleep_until

_AHEAD_MS = (2000, 5000)
_TURN_SECONDS = 0.002  # more timers than one are sent in a turn, if the rate is high
_DUPLICATES_SECONDS = 1


class Drained(NamedTuple):
    """What is known of timers that were due together."""

    events: Sequence[Fired]
    seconds: float
    """From the instant to the last event."""
    more: Mapping[str, float] = {}
    """Further figures."""


async def measure_drain(
    rig: Rig, size: int, fire: Callable[[Rig, Sequence[Timer]], Awaitable[Drained]], event_type: str = "DueTimeReached"
) -> Result:
    """Schedule timers for one instant. `fire` waits for their events. Measure how fast these are published."""
    timers = due_together("bench", size, rig.soon(size))
    drained = await fire(rig, timers)
    figures = {
        "timers": size,
        "seconds from the instant to the last event": drained.seconds,
        "timers/s": size / drained.seconds,
        **drained.more,
        **lateness(timers, drained.events, (0.5, 0.99)),
    }
    return Result(figures, faults(timers, drained.events, event_type))


async def measure_fair(
    rig: Rig, size: int, fire: Callable[[Rig, Sequence[Timer]], Awaitable[Drained]], event_type: str = "DueTimeReached"
) -> Result:
    """Schedule many timers of one tenant and one timer of another for one instant. Measure how late the one is."""
    due_at = rig.soon(size)
    timers = due_together("flood", size, due_at) + due_together("single", 1, due_at)
    drained = await fire(rig, timers)
    late = [event.at - due_at for event in drained.events if event.tenant == "single"]
    figures = {
        "timers of the first tenant": size,
        "seconds from the instant to the last event": drained.seconds,
        "lateness of the other tenant's timer, ms": late[0] if late else math.nan,
    }
    return Result(figures, faults(timers, drained.events, event_type))


async def measure_lag(
    sender: Sender,
    service: Fleet,
    rate: int,
    seconds: int,
    *,
    listen: Callable[[Callable[[bytes], None]], Awaitable[None]],
    command_of: Callable[[Timer], tuple[Command, Mapping[str, str]]] = lambda timer: (timer, {}),
    event_type: str = "DueTimeReached",
) -> Result:
    """Publish timers, each due at a random instant in the near future. Measure how late each event arrives.

    `listen` gets what is called with the body of each event. `command_of` returns the message for a timer, and its
    headers.
    """
    arrived: list[tuple[bytes, float]] = []
    timers: list[Timer] = []

    async def missing() -> int:
        return len(timers) - len(arrived)

    await listen(lambda body: arrived.append((body, time.time_ns() / 1_000_000)))
    rng = random.Random(1)
    start = time.time()
    for index in range(rate * seconds):
        ahead = start + index / rate - time.time()
        if ahead > _TURN_SECONDS:
            await asyncio.sleep(ahead)
        timers.append(Timer("bench", f"call-{index}", now() + rng.randint(*_AHEAD_MS)))
        await sender.send(*command_of(timers[-1]))
    await sender.flush()
    await sleep_until(max(timer.due_at for timer in timers))
    await until_none(service, missing)
    await asyncio.sleep(_DUPLICATES_SECONDS)
    events = [fired(body, at) for body, at in arrived]
    figures = {
        "timers": len(timers),
        "timers/s, scheduled 2 to 5 s ahead": rate,
        **lateness(timers, events, (0.5, 0.99, 0.999, 1)),
    }
    return Result(figures, faults(timers, events, event_type))
