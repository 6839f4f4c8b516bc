"""Samples how many timers there are, for the gauges: never per scrape, and never without a bound."""

from timer_service.core.database import Database
from timer_service.core.instruments import Instruments
from timer_service.timers import store
from timer_service.timers.rules import State

_COUNTED_AT_MOST = 1_000_000


class Census:
    """A worker whose ticks tell the instruments what is in the table."""

    def __init__(self, database: Database, instruments: Instruments) -> None:
        self._database = database
        self._instruments = instruments

    async def tick(self, now: int) -> int:
        """Count, each state no further than a million; return how many timers were counted."""
        reader = self._database.queries
        counted = {state: await store.count_all(reader, state, _COUNTED_AT_MOST) for state in State}
        for state, count in counted.items():
            self._instruments.counted(store.TIMERS.name, state, count)
        overdue, oldest_at = await store.overdue(reader, now, _COUNTED_AT_MOST)
        self._instruments.overdue(overdue, 0 if oldest_at is None else max(0, now - oldest_at) / 1000)
        return sum(counted.values())

    async def next_at(self) -> int | None:
        """Return None: the interval alone decides."""
        return None
