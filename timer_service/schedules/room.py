"""What one transaction that fires slots may do. Others wait for it: for the writer, or for the event loop."""

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from timer_service.core.ports.database import Row
from timer_service.core.requests.computing import Steps
from timer_service.core.values.budget import MIB

MOST_SLOTS = 1000
MOST_SLOTS_OF_SCHEDULE = 100
MOST_DATA = 2 * MIB
MOST_COMPUTING_SECONDS = 0.02
"""The bounds of one transaction. Slots beyond them stay due."""
COSTLY = 4
"""As how many slots one counts that starts a workflow, or that is backfilled."""
_TURN_SECONDS = 0.005
"""How long slots are computed before other tasks run."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Used:
    """What a tenant, or all of them, have used of a transaction."""

    slots: int = 0
    data: int = 0
    seconds: float = 0.0

    def left(self, share: float, size: int, cost: int) -> int:
        """Return how many slots of a cost, each with `size` characters, still fit into a share of the bounds."""
        if self.seconds > share * MOST_COMPUTING_SECONDS:
            return 0
        by_cost = (share * MOST_SLOTS - self.slots) / cost
        by_data = (share * MOST_DATA - self.data) / max(size, 1)
        return max(int(min(by_cost, by_data)), 0)


class Room:
    """The bounds of a transaction. Each tenant has an equal share of them, but may fire one slot whatever it costs."""

    def __init__(self, tenants: Collection[str]) -> None:
        self._used = {tenant: _Used() for tenant in tenants}
        self._all = _Used()
        self._share = 1 / max(len(self._used), 1)
        self._turn_seconds = 0.0
        """How long slots have been computed since other tasks ran."""

    def in_order(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int, int]]:
        """Yield rows in order, with how many slots each may fire and the cost of one.

        Rows of tenants that have used their shares come last, and get what others have left.
        """
        later = []
        for row in rows:
            cost = 1 if row["start"] is None else COSTLY
            if most := self.most_slots(row["tenant_id"], row["data_size"], cost):
                yield row, most, cost
            else:
                later.append((row, cost))
        self._share = 1.0
        for row, cost in later:
            yield row, self.most_slots(row["tenant_id"], row["data_size"], cost), cost

    def most_slots(self, tenant: str, size: int, cost: int = 1) -> int:
        """Return how many slots of a schedule may fire, each with `size` characters of data."""
        if not self._all.left(1, 0, 1):
            return 0
        used = self._used[tenant]
        least = 0 if used.slots else 1
        left = min(used.left(self._share, size, cost), self._all.left(1, size, cost))
        return min(MOST_SLOTS_OF_SCHEDULE, max(left, least))

    def use(self, tenant: str, slots: int, size: int, cost: int = 1) -> None:
        """Record what a schedule has used. Its row is written, with its data, also if no slot fires."""
        for used in (self._used[tenant], self._all):
            used.slots += max(slots * cost, 1)
            used.data += max(slots, 1) * size

    async def compute(self, tenant: str, steps: Steps[_T]) -> _T:
        """Return the result of work for a tenant. Other tasks run in between."""
        while True:
            began = time.perf_counter()
            try:
                next(steps)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            finally:
                await self._rest_after(tenant, time.perf_counter() - began)

    async def _rest_after(self, tenant: str, seconds: float) -> None:
        """Record how long computing took. Let other tasks run after 5 ms of it."""
        self._used[tenant].seconds += seconds
        self._all.seconds += seconds
        self._turn_seconds += seconds
        if self._turn_seconds > _TURN_SECONDS:
            self._turn_seconds = 0.0
            await asyncio.sleep(0)
