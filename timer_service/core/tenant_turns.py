"""The turns of tenants: which tenants a select or a claim shares its rows between."""

from timer_service.core.database import Reader, Row, Transaction

_LOOKED_AT = 1000
"""How many tenants `due` looks at in one call."""


class TenantTurns:
    """The tenants that have rows to fire, round-robin: each call continues where the last one ended."""

    def __init__(self, unsettled_tenants: str) -> None:
        """`unsettled_tenants`: that statement of `lease.sql` for a table, or one with its parameters and columns."""
        self._statement = unsettled_tenants
        self._last = ""

    async def shares(self, tx: Transaction, now: int, limit: int) -> list[tuple[str, int]]:
        """Return tenants with rows that are due at `now`, and how many of `limit` rows each of them gets.

        Return none if only one tenant has such rows.
        """
        tenants = await self._next(tx, limit)
        due = [row["tenant_id"] for row in tenants if row["oldest"] <= now]
        if len(due) == 1 and len(tenants) < limit:
            return []
        return [(tenant, limit // len(due)) for tenant in due]

    async def due(self, reader: Reader, now: int, limit: int) -> list[str]:
        """Return up to `limit` tenants with rows that are due at `now`. Looks at 1,000 tenants at most."""
        due = [row["tenant_id"] for row in await self._next(reader, _LOOKED_AT) if row["oldest"] <= now][:limit]
        if len(due) == limit:
            self._last = due[-1]
        return due

    async def _next(self, tx: Reader, limit: int) -> list[Row]:
        """Return up to `limit` tenants that have unsettled rows."""
        last = self._last
        tenants = list(await tx.fetch(self._statement, {"after": last, "limit": limit}))
        if last and len(tenants) < limit:
            first = await tx.fetch(self._statement, {"after": "", "limit": limit - len(tenants)})
            tenants += [row for row in first if row["tenant_id"] <= last]
        self._last = tenants[-1]["tenant_id"] if len(tenants) == limit else ""
        return tenants
