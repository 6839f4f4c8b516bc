"""Takes the available rows of a table fairly: each tenant gets an equal share first.

Tenants can be left out as a whole, however many due rows they have. Then neither the number of available rows nor the
oldest of them says whether other tenants have due rows. So rows are taken tenant by tenant, and what a look has found
says when to look again.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from timer_service.core.due.tenant_turns import TenantTurns
from timer_service.core.ports.database import Reader, Row, Transaction

_POLL_MS = 1_000
"""How long to wait at most before the next look. Rows that another process adds are found then, if no hint arrives."""

Shares = Sequence[tuple[str, int]]
"""Tenants, and how many rows each of them gets at most."""


class Steps(NamedTuple):
    """How rows are taken."""

    shares: Callable[[Shares], Awaitable[Sequence[Row]]]
    """Takes the oldest rows of tenants."""
    oldest: Callable[[list[Row], int], Awaitable[list[Row]]]
    """Returns the rows that were taken, and up to a number of the oldest others."""


class _Look(NamedTuple):
    """A look at the due rows of an instant that left out some tenants."""

    at: int
    has_more: bool
    """Whether other tenants may have more due rows than were taken."""


class FairRows:
    """The available rows of one table."""

    def __init__(self, sql: Callable[[str], str], *, takes_away: bool) -> None:
        """`sql` returns a statement of `lease.sql` for the table.

        `takes_away`: rows that were taken are not available to the next statement of the transaction.
        """
        self._count_available = sql("count_available")
        self._next_available = sql("next_available")
        self._next_available_after = sql("next_available_after")
        self._turns = TenantTurns(sql("due_tenants"))
        self._takes_away = takes_away
        self._look: _Look | None = None
        """What was found the last time, if some tenants were left out."""

    async def take(self, tx: Transaction, now: int, limit: int, waiting: Collection[str], by: Steps) -> list[Row]:
        """Take up to `limit` rows that are available at `now`, of the tenants that are not in `waiting`.

        If more rows are available, each tenant gets an equal share first, and the oldest rows get the rest.
        """
        self._look = None
        if waiting:
            return await self._take_beside(tx, now, limit, waiting, by)
        available = await self.count_available(tx, now, limit + 1)
        rows = list(await by.shares(await self._turns.shares(tx, now, limit))) if available > limit else []
        rest = min(available, limit) - len(rows)
        return await by.oldest(rows, rest) if rest > 0 else rows

    async def _take_beside(
        self, tx: Transaction, now: int, limit: int, waiting: Collection[str], by: Steps
    ) -> list[Row]:
        shares, all_looked_at = await self._turns.shares_beside(tx, now, limit, waiting)
        rows = list(await by.shares(shares))
        counts = Counter(row["tenant_id"] for row in rows)
        full = [tenant for tenant, share in shares if counts[tenant] >= share]
        self._look = _Look(now, bool(full) or not all_looked_at)
        for tenant in full if self._takes_away else ():
            if rest := limit - len(rows):
                rows += await by.shares([(tenant, rest)])
        return rows

    async def count_available(self, reader: Reader, now: int, limit: int) -> int:
        """Return how many rows may be taken at `now`, at most `limit`."""
        (row,) = await reader.fetch(self._count_available, {"now": now, "limit": limit})
        count: int = row["count"]
        return count

    def look_again(self) -> None:
        """Forget what was found: rows have become available since."""
        self._look = None

    async def next_available(self, reader: Reader) -> int | None:
        """Return when to take rows again; None if no row is waiting."""
        look = self._look
        if look is not None and look.has_more:
            return look.at
        if look is None:
            (row,) = await reader.fetch(self._next_available)
            at: int | None = row["at"]
            return at
        (row,) = await reader.fetch(self._next_available_after, {"now": look.at})
        latest = look.at + _POLL_MS
        return latest if row["at"] is None else min(row["at"], latest)
