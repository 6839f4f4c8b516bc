"""One event in a consumer: what can be done with it, and what its failures lead to."""

import random
from datetime import timedelta
from enum import Enum
from typing import Protocol

from timer_service.client.events import Event
from timer_service.core.values.delays import Backoff

LONGEST_DELAY = timedelta(minutes=10)
"""The longest delay before an event is tried again."""
FIRST_DELAY = timedelta(seconds=1)
"""The delay after the first failure. Each further failure doubles it."""
_JITTER = 0.2
"""A delay is shorter by at most this part, so that events that failed together are not tried again together."""
DEATHS = 10
"""So many deliveries more than `attempts` may end without a result before an event is parked without a try.

The events that were delivered with a harmful one have `turn`s, so most are handled in two further deliveries.
"""


class Receipt(Protocol):
    """The broker's part of a delivery."""

    async def ack(self) -> None:
        """Settle the event: it is not delivered again."""

    async def retry(self, delay: timedelta) -> None:
        """Let the event be delivered again after a delay."""

    async def renew(self) -> None:
        """Tell the broker that the event is still being handled."""


class Delivery:
    """An event in this process, until it is settled with `ack` or `retry`.

    Without one of them, the broker delivers the event again after `ack_wait`, counted from the delivery or the last
    `renew`. If the connection was lost since the delivery, the methods have no effect, and the event comes again.
    """

    __slots__ = ("_receipt", "attempt", "event", "problem", "size")

    def __init__(self, event: Event, attempt: int, receipt: Receipt, *, size: int, problem: str | None = None) -> None:
        self.event = event
        """The event. If there is a `problem`, only its `raw` form is of use."""
        self.attempt = attempt
        """How often the event was delivered to this consumer, this time included."""
        self.problem = problem
        """Why the message cannot be read as an event, or None."""
        self.size = size
        """The bytes of the message."""
        self._receipt = receipt

    async def ack(self) -> None:
        """Settle the event: this consumer has handled it."""
        await self._receipt.ack()

    async def retry(self, delay: timedelta = timedelta(0)) -> None:
        """Give the event back. It is delivered again after `delay`, here or to another process."""
        await self._receipt.retry(delay)

    async def renew(self) -> None:
        """Tell the broker that the event is still being handled: `ack_wait` begins anew."""
        await self._receipt.renew()


class Arrival(Enum):
    """What to do with an event that was delivered."""

    RUN = "run"
    ALONE = "run it while no other event is in progress, because it may have ended the process each time"
    PARK = "park it without another try"


def judge(delivery: Delivery, attempts: int, *, failed_here: bool) -> Arrival:
    """Return what to do with an event. `failed_here`: whether its handler raised an error in this process.

    An event that fails is parked at its attempt number `attempts`. So one that was delivered more often has ended the
    process, or was in a process that ended for another reason. Alone, it can harm no other event.
    """
    if failed_here or delivery.attempt <= attempts:
        return Arrival.RUN
    return Arrival.ALONE if delivery.attempt <= attempts + DEATHS else Arrival.PARK


def turn(delivery: Delivery) -> float:
    """Return the place of an event among those that run alone; the lowest runs first.

    The order is random, and reversed at every second attempt. So a harmless event has its turn before a given harmful
    one in one of two attempts, whatever process makes them.
    """
    place = random.Random(f"{delivery.attempt // 2} {delivery.event.id}").random()  # noqa: S311 - no secret
    return place if delivery.attempt % 2 else -place


def retry_delay(attempt: int, rng: random.Random) -> timedelta:
    """Return the delay after `attempt` (1, 2, ...) failed: 1 s, 2 s, 4 s and so on, at most 10 min, less the jitter."""
    return Backoff(FIRST_DELAY, LONGEST_DELAY).longest(attempt) * (1 - _JITTER * rng.random())
