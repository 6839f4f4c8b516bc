"""How many deliveries of a command count against it."""

from timer_service.core.broker import Delivery
from timer_service.core.message import Position

_MOST = 20_000


class Attempts:
    """Counts the deliveries of commands, without those that ended for a reason outside the command.

    The broker counts the deliveries, so a crash does not lose the count. The deliveries to subtract are in memory. If
    they are lost, a command can count as suspicious too early; it is then handled alone, which costs only time.
    """

    def __init__(self) -> None:
        self._excused: dict[Position, int] = {}

    def of(self, delivery: Delivery) -> int:
        """Return how many deliveries count, this one included."""
        return delivery.attempt - self._excused.get(delivery.position, 0)

    def excuse(self, delivery: Delivery) -> None:
        """Count neither this delivery nor the earlier ones. Forgets the oldest of 20,000 commands."""
        self._excused.pop(delivery.position, None)
        if len(self._excused) >= _MOST:
            del self._excused[next(iter(self._excused))]
        self._excused[delivery.position] = delivery.attempt

    def forget(self, delivery: Delivery) -> None:
        """Forget a command that is settled."""
        if self._excused:
            self._excused.pop(delivery.position, None)
