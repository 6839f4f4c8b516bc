"""The order in which a pass handles due schedules: tenants take turns, and the one that has used least comes first."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from timer_service.core.ports.database import Row

_MOST_RESTS = 1000
"""How many schedules are selected at most beyond those that a pass can handle."""


class PassOrder:
    """The order of schedules in a pass, and what each tenant has used. It is kept from pass to pass.

    So the tenants that a pass did not reach come first in the next one, and a tenant whose schedules cost much gets
    fewer turns.
    """

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        """What tenants have used beyond the tenant that has used least, as a part of a pass."""
        self.rests: Mapping[str, int] = {}
        """How many schedules of each tenant have fired and still have due slots. Others come before them, and may be
        younger. So as many more are to be selected."""

    def of(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Return rows in turns, those of each tenant in the order in which they wait.

        Call `charge` for each row before the next one is taken.
        """
        queues: dict[str, deque[Row]] = {}
        for row in sorted(rows, key=_waits_since):
            queues.setdefault(row["tenant_id"], deque()).append(row)
        heap = [(self._used.get(tenant, 0.0), number, tenant) for number, tenant in enumerate(queues)]
        heapify(heap)
        while heap:
            _, number, tenant = heap[0]
            yield queues[tenant].popleft()
            if queues[tenant]:
                heapreplace(heap, (self._used.get(tenant, 0.0), number, tenant))
            else:
                heappop(heap)

    def charge(self, tenant: str, part: float) -> None:
        """Record that a tenant has used a part of a pass."""
        self._used[tenant] = self._used.get(tenant, 0.0) + part

    def end(self, waiting: Iterable[str], rests: Iterable[str]) -> None:
        """End a pass. `waiting`: the tenants that still have due schedules. `rests`: the tenant of each with a rest."""
        counts = Counter(rests)
        self.rests = {tenant: min(count, _MOST_RESTS // len(counts)) for tenant, count in counts.items()}
        least = min((self._used.get(tenant, 0.0) for tenant in waiting), default=None)
        if least is None:
            self._used.clear()
        else:
            self._used = {tenant: used - least for tenant, used in self._used.items() if used > least}


def has_rest(row: Row) -> bool:
    """Return whether a due schedule has fired since it became due: the last pass left some of its slots."""
    return row["last_fired_at"] is not None and row["last_fired_at"] >= row["available_at"]


def _waits_since(row: Row) -> tuple[int, bool]:
    """Return what orders due schedules. One with a rest goes behind those that were due when it fired."""
    return (row["last_fired_at"], True) if has_rest(row) else (row["available_at"], False)
