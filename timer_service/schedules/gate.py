"""Lets slots fire only while events can be published, and after the commands of an outage have been handled.

A PauseSchedule that was sent while the service or the broker was away shall stop the slots that became due meanwhile.
While the event stream is full, slots wait too, so that the outbox does not grow.
"""

from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import RecentFailure

_QUIET_MS = 10_000
"""How long no event was refused before slots fire again. While events wait, the relay tries more often than that."""


class FiringGate:
    """Closed while the backlog gate is, while events cannot be published, and for some seconds after that."""

    def __init__(self, broker: Broker, publishing: RecentFailure, database: Database) -> None:
        self._backlog = BacklogGate(broker, database)
        self._publishing = publishing
        self._failures = 0
        """The failures of publishing that the gate has seen."""
        self._closed_until = 0

    async def is_open(self, now: int) -> bool:
        """Return whether slots may fire at `now`. If not, ask again after `RECHECK_MS`."""
        if self._failures != self._publishing.failures:
            self._failures, self._closed_until = self._publishing.failures, now + _QUIET_MS
        self._closed_until = min(self._closed_until, now + _QUIET_MS)  # the clock may have been set back
        return await self._backlog.is_open(now) and self._publishing.health.usable and now >= self._closed_until
