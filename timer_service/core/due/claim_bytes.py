"""Which rows of a claim fit into its bytes."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.ports.database import Row


class Split(NamedTuple):
    """The rows of a claim that fit into its bytes, and the others. Both keep their order."""

    kept: list[Row]
    left: list[Row]
    last_turn: str | None
    """If there was no room for any row of a tenant: the tenant whose turn was before that; else None."""


def split_by_bytes(rows: Sequence[Row], limit: int, turns: Sequence[str]) -> Split:
    """Split claimed rows into those whose sizes fit into `limit`, at least one, and the others.

    Tenants have their turns in the order of `turns`. The first one gets a row, however large. Each gets an equal share
    then. Those whose rows are larger than that get one row each, until one does not fit, and the oldest rows get the
    rest. The rows of a tenant are kept in order: if one does not fit, its later rows are left out too.
    """
    kept = _Kept(rows, limit)
    kept.add_next(turns[0], limit)
    for tenant in turns:
        while kept.add_next(tenant, limit // len(turns)):
            pass
    last_turn: str | None = None
    for tenant in turns:
        if not (kept.has(tenant) or kept.add_next(tenant, limit)):
            break
        last_turn = tenant
    else:
        last_turn = None
    full: set[str] = set()
    for number, row in enumerate(rows):
        tenant = row["tenant_id"]
        if number not in kept.numbers and tenant not in full and not kept.add_next(tenant, limit):
            full.add(tenant)
    return Split(
        [row for number, row in enumerate(rows) if number in kept.numbers],
        [row for number, row in enumerate(rows) if number not in kept.numbers],
        last_turn,
    )


class _Kept:
    """The rows that are kept, by their numbers."""

    def __init__(self, rows: Sequence[Row], limit: int) -> None:
        self.numbers: set[int] = set()
        self._rows = rows
        self._limit = limit
        self._next: dict[str, deque[int]] = {}
        for number, row in enumerate(rows):
            self._next.setdefault(row["tenant_id"], deque()).append(number)
        self._used: Counter[str] = Counter()
        self._total = 0

    def has(self, tenant: str) -> bool:
        """Return whether a row of a tenant is kept."""
        return tenant in self._used

    def add_next(self, tenant: str, most: int) -> bool:
        """Keep the next row of a tenant if its rows then have at most `most` bytes. Return whether it is kept.

        The first row of all is kept in any case.
        """
        if not (waiting := self._next[tenant]):
            return False
        size: int = self._rows[waiting[0]]["size"]
        if self.numbers and (self._used[tenant] + size > most or self._total + size > self._limit):
            return False
        self.numbers.add(waiting.popleft())
        self._used[tenant] += size
        self._total += size
        return True
