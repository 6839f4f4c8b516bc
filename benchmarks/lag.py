"""Timers that are scheduled at a steady rate, are due at random instants, and how late their events arrive."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.harness import Command, publish, until_none
from benchmarks.processes import Fleet
from benchmarks.records import Result
from benchmarks.timers import Timer, faults, fired, lateness, now, sleep_until

_AHEAD_MS = (2000, 5000)
_TURN_SECONDS = 0.002  # more timers than one are sent in a turn, if the rate is high
_DUPLICATES_SECONDS = 1


async def measure_lag(
    client: Client,
    service: Fleet,
    rate: int,
    seconds: int,
    *,
    subscribe: Callable[[Callable[[Msg], Awaitable[None]]], Awaitable[object]],
    command_of: Callable[[Timer], tuple[Command, Mapping[str, str]]] = lambda timer: (timer, {}),
    event_type: str = "DueTimeReached",
) -> Result:
    """Publish timers, each due at a random instant in the near future. Measure how late each event arrives.

    `subscribe` gets what is called with each event. `command_of` returns the message for a timer, and its headers.
    """
    arrived: list[tuple[bytes, float]] = []
    timers: list[Timer] = []

    async def arrive(message: Msg) -> None:
        arrived.append((message.data, time.time_ns() / 1_000_000))

    async def missing() -> int:
        return len(timers) - len(arrived)

    await subscribe(arrive)
    rng = random.Random(1)
    publisher = await publish(client, ())
    start = time.time()
    for index in range(rate * seconds):
        ahead = start + index / rate - time.time()
        if ahead > _TURN_SECONDS:
            await asyncio.sleep(ahead)
        timers.append(Timer("bench", f"call-{index}", now() + rng.randint(*_AHEAD_MS)))
        await publisher.send(*command_of(timers[-1]))
    await publisher.flush()
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
