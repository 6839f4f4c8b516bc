"""What counts against a command: its deliveries, and its failures."""

from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position
from timer_service.core.values.recent import Recent


class Attempts:
    """Counts the deliveries and the failures of commands.

    The deliveries show which commands may have ended the process. The broker counts them, so a crash does not lose the
    count. Those that ended for a reason outside the command are subtracted; this is in memory. If it is lost, a command
    can count as suspicious too early. It is then handled alone, which costs only time.

    A command is rejected because of its failures. They are only in memory: after a restart it is tried longer.
    """

    def __init__(self) -> None:
        self._excused: Recent[Position, int] = Recent()
        self._failures: Recent[Position, int] = Recent()

    def of(self, delivery: Delivery) -> int:
        """Return how many deliveries count, this one included."""
        return delivery.attempt - self._excused.get(delivery.position, 0) if self._excused else delivery.attempt

    def excuse(self, delivery: Delivery) -> None:
        """Count neither this delivery nor the earlier ones. Forgets the oldest of 20,000 commands."""
        self._excused[delivery.position] = delivery.attempt

    def fail(self, delivery: Delivery) -> int:
        """Count a failure of a command, and return how many it has. Forgets the oldest of 20,000 commands."""
        failures = self._failures.get(delivery.position, 0) + 1
        self._failures[delivery.position] = failures
        return failures

    def forget(self, delivery: Delivery) -> None:
        """Forget a command that is settled."""
        for counts in (self._excused, self._failures):
            if counts:  # mostly there are none, and this is called for each command
                counts.pop(delivery.position, None)
