"""Claims and selects that leave out waiting tenants as a whole, however many due rows these have.

Then neither the number of available rows nor the oldest of them says whether other tenants have due rows. So rows are
taken tenant by tenant, and what a look has found says when to look again.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from timer_service.core.due.tenant_turns import TenantTurns
from timer_service.core.ports.database import Reader, Row, Transaction

_POLL_MS = 1_000
"""How long to wait at most before the next look. Rows that another process adds are found then, if no hint arrives."""

FetchShares = Callable[[Sequence[tuple[str, int]]], Awaitable[Sequence[Row]]]
"""Returns rows of tenants: of each, up to a number."""


def no_tenants(_now: int) -> Collection[str]:
    """Let no tenant wait."""
    return ()


class Look(NamedTuple):
    """A look at the due rows of an instant that left out the waiting tenants."""

    at: int
    full: Sequence[str]
    """The tenants that got their whole share, so they may have more due rows."""
    all_looked_at: bool
    """Whether these, and the tenants with smaller shares, are all that have due rows."""

    async def next_at(self, reader: Reader, next_available_after: str) -> int:
        """Return when to look again. `next_available_after`: that statement of `lease.sql` for the table."""
        if self.full or not self.all_looked_at:
            return self.at
        (row,) = await reader.fetch(next_available_after, {"now": self.at})
        latest = self.at + _POLL_MS
        return latest if row["at"] is None else min(row["at"], latest)


async def take_beside(
    tx: Transaction, turns: TenantTurns, fetch: FetchShares, *, now: int, limit: int, waiting: Collection[str]
) -> tuple[list[Row], Look]:
    """Return equal shares of up to `limit` due rows, of the tenants that do not wait, and what the look has found."""
    shares, all_looked_at = await turns.shares_beside(tx, now, limit, waiting)
    rows = list(await fetch(shares))
    counts = Counter(row["tenant_id"] for row in rows)
    return rows, Look(now, [tenant for tenant, share in shares if counts[tenant] >= share], all_looked_at)
