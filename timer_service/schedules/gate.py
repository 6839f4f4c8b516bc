"""Lets slots fire only while events can be published, and after the commands of an outage have been handled.

A PauseSchedule that was sent while the service or the broker was away shall stop the slots that became due meanwhile.
While the event stream is full, slots wait too, so that the outbox does not grow.
"""

from collections.abc import Callable, Collection

from timer_service.core.events import outbox
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import RecentFailure


class FiringGate:
    """Closed while the backlog gate is, while events cannot be published, and until those that waited are out."""

    def __init__(
        self, broker: Broker, publishing: RecentFailure, database: Database, over: Callable[[int], Collection[str]]
    ) -> None:
        """`over` returns the tenants whose events wait because of their limit. The gate does not wait for these."""
        self._over = over
        self._backlog = BacklogGate(broker, database)
        self._publishing = publishing
        self._database = database
        self._failures = 0
        """The failures of publishing that the gate has seen."""
        self._full_at: int | None = None
        """When publishing was last seen to fail; None after the events of then have been published."""

    async def is_open(self, now: int) -> bool:
        """Return whether slots may fire at `now`. If not, ask again after `RECHECK_MS`."""
        return await self._backlog.is_open(now) and await self._events_flow(now)

    async def _events_flow(self, now: int) -> bool:
        if self._failures != self._publishing.failures:
            self._failures, self._full_at = self._publishing.failures, now
        if not self._publishing.health.usable:
            return False
        if self._full_at is not None:
            self._full_at = min(self._full_at, now)  # the clock may have been set back
            oldest = await outbox.oldest_available(self._database.reader, self._over(now))
            if oldest is not None and oldest <= self._full_at:
                return False
            self._full_at = None
        return True
