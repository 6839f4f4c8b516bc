"""The turns of tenants: which tenants a select or a claim shares its rows between."""

from collections.abc import Collection
from typing import NamedTuple

from timer_service.core.ports.database import Reader, Transaction

_MOST_LOOKED_AT = 5000
"""How many tenants with rows to fire are looked at in one call, due or not. On SQLite, 5,000 take about 25 ms."""
_DAMAGE = "\ufffd"
"""What stands for damage in a text of SQLite. No id of a tenant has it."""


class _Scan(NamedTuple):
    """What a look at tenants in the order of their ids has found."""

    due: list[str]
    last: str | None
    """The last tenant that was looked at; None if no tenant is left."""
    looked_at: int


class TenantTurns:
    """The tenants that have due rows, round-robin: each call continues where the last one ended."""

    def __init__(self, due_tenants: str) -> None:
        """`due_tenants`: that statement of `lease.sql` or of `unfinished_commands.sql` for a table."""
        self._statement = due_tenants
        self._last = ""

    async def shares(self, tx: Transaction, now: int, limit: int) -> list[tuple[str, int]]:
        """Return tenants with rows that are due at `now`, and how many of `limit` rows each of them gets.

        Return none if only one tenant has such rows.
        """
        due, all_looked_at = await self._next(tx, now, limit)
        if len(due) == 1 and all_looked_at:
            return []
        return [(tenant, limit // len(due)) for tenant in due]

    async def shares_beside(
        self, tx: Transaction, now: int, limit: int, waiting: Collection[str]
    ) -> tuple[list[tuple[str, int]], bool]:
        """Return the shares of tenants that are not in `waiting`, also of a single one, and whether these are all."""
        others, all_looked_at = await self._next_beside(tx, now, limit, waiting)
        return [(tenant, limit // len(others)) for tenant in others], all_looked_at

    def continue_after(self, tenant: str) -> None:
        """Let the next call continue after one of the tenants that the last call returned: the others got no turn."""
        self._last = tenant

    async def next_due(self, reader: Reader, now: int, limit: int, waiting: Collection[str] = ()) -> list[str]:
        """Return the next tenants with rows that are due at `now` and that are not in `waiting`, up to `limit`.

        Looks at 5,000 tenants at most.
        """
        due, _ = await self._next_beside(reader, now, limit, waiting)
        return due

    async def _next_beside(
        self, reader: Reader, now: int, limit: int, waiting: Collection[str]
    ) -> tuple[list[str], bool]:
        """Like `_next`, without the tenants in `waiting`. However many these are, they take no place of others."""
        due, all_looked_at = await self._next(reader, now, limit + len(waiting))
        others = [tenant for tenant in due if tenant not in waiting]
        if len(others) <= limit:
            return others, all_looked_at
        self._last = others[limit - 1]
        return others[:limit], False

    async def _next(self, reader: Reader, now: int, limit: int) -> tuple[list[str], bool]:
        """Return the next due tenants, and whether all tenants were looked at."""
        began_after = self._last
        due, last, looked_at = await self._scan(reader, now, limit, began_after, _MOST_LOOKED_AT)
        all_looked_at = last is None and not began_after
        if last is None and began_after and looked_at < _MOST_LOOKED_AT:
            room = limit - len(due)  # at least 1: no tenant was left
            first = await self._scan(reader, now, room, "", _MOST_LOOKED_AT - looked_at)
            due += [tenant for tenant in first.due if tenant <= began_after]
            all_looked_at = first.last is None or first.last >= began_after
            last = None if all_looked_at else first.last
        self._last = last or ""
        return due, all_looked_at

    async def _scan(self, reader: Reader, now: int, limit: int, after: str, looked_at: int) -> _Scan:
        """Look at tenants. A damaged id takes no turn and does not end the scan: the next one would begin with it."""
        most = limit
        while True:
            parameters = {"now": now, "limit": most, "after": after, "looked_at": looked_at}
            rows = await reader.fetch(self._statement, parameters)
            damaged = sum(_DAMAGE in (row["tenant_id"] or "") for row in rows)
            if len(rows) < most or most >= limit + damaged:
                break
            most = limit + damaged
        last = rows[-1]
        due = [row["tenant_id"] for row in rows if row["oldest"] is not None and row["oldest"] <= now]
        return _Scan([tenant for tenant in due if _DAMAGE not in tenant], last["tenant_id"], last["number"])
