"""The redelivery after a crash: commands that were in flight come again while `ack_wait` is short."""

import time
from collections.abc import Sequence

from timer_service.adapters.nats.durable import InFlight
from timer_service.core.values.delivery import Delivery

_REDELIVERY_SECONDS = 5


class Redelivery:
    """The time after a crash in which commands that were in flight are delivered again."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._seen: set[int] = set()
        self._ends_at = time.monotonic() + _REDELIVERY_SECONDS

    def count(self, batch: Sequence[Delivery]) -> None:
        """Count the commands of a batch that were in flight."""
        sequences = (delivery.position.sequence for delivery in batch)
        self._seen.update(sequence for sequence in sequences if sequence <= self._in_flight.last)

    def is_over(self) -> bool:
        """Return whether all commands have come or the time is over. A deleted command never comes."""
        return len(self._seen) >= self._in_flight.number or time.monotonic() >= self._ends_at
