"""Timers that are scheduled at a steady rate, and are due at random instants."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping

from nats.aio.client import Client

from benchmarks.harness import Command, Publisher
from benchmarks.timers import Timer, now

_AHEAD_MS = (2000, 5000)
_TURN_SECONDS = 0.002  # more timers than one are sent in a turn, if the rate is high


def _command(timer: Timer) -> tuple[Command, Mapping[str, str]]:
    return timer, {}


async def schedule_steadily(
    client: Client,
    rate: int,
    seconds: int,
    command_of: Callable[[Timer], tuple[Command, Mapping[str, str]]] = _command,
) -> list[Timer]:
    """Publish timers, each due at a random instant in the near future. Return the timers.

    `command_of` returns the message for a timer, and its headers.
    """
    rng = random.Random(1)
    publisher = Publisher(client)
    await publisher.open()
    start = time.time()
    timers: list[Timer] = []
    for index in range(rate * seconds):
        ahead = start + index / rate - time.time()
        if ahead > _TURN_SECONDS:
            await asyncio.sleep(ahead)
        timer = Timer("bench", f"call-{index}", now() + rng.randint(*_AHEAD_MS))
        await publisher.send(*command_of(timer))
        timers.append(timer)
    await publisher.flush()
    return timers
