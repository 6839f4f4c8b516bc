"""Whose turn it is: the rows of a table that have been due longest, with an equal share for each tenant.

`FairRows.take` is the rule. `Lease` takes rows with it for a time, and `DueRows` for one transaction. A worker that
finishes rows in the transaction that selects them needs no lease: if it dies, the rows are due as before.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.due.isolate import Retry
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql

SQL = load_sql("timer_service.core.due", "due_rows.sql")
_MOST_LOOKED_AT = 5000
"""How many tenants with rows to fire one scan looks at, due or not. On SQLite, 5,000 take about 25 ms."""
_POLL_MS = 1_000
"""How long to wait at most before the next look. Rows that another process adds are found then, if no hint arrives."""
_DAMAGE = "\ufffd"
"""What stands for damage in a text of SQLite. An id may also have it."""

Shares = Sequence[tuple[str, int]]
"""Tenants, and how many rows each of them gets at most."""


@dataclass(frozen=True, slots=True)
class DueTable:
    """A table whose rows become due. Each needs an index over `tenant_id` and `order`, and one over `order[0]`."""

    name: str
    key: tuple[str, ...]
    """The columns of the key. The first one is `tenant_id`."""
    order: tuple[str, ...]
    """The columns that order the rows of a tenant. The first one has the instant from which a row is due."""
    columns: tuple[str, ...]
    """The selected columns or expressions. They include the key and `order[0]`."""
    where: str = "TRUE"
    """The predicate of the indexes."""
    available: str | None = None
    """The column of the instant from which a row may be taken, if it can be later than `order[0]`."""

    def sql(self, name: str) -> str:
        """Return the named statement of `due_rows.sql` for this table."""
        return SQL[name].format(
            table=self.name,
            available=self.available or self.order[0],
            oldest=self.order[0],
            order=", ".join(self.order),
            where=self.where,
            key_is=" AND ".join(f"{column} = :{column}" for column in self.key),
            rest_of_key=", ".join(self.key[1:]),
            columns=", ".join(self.columns),
        )


class TenantTurns:
    """The tenants that have due rows, round-robin: each call continues where the last one ended."""

    def __init__(self, due_tenants: str) -> None:
        """`due_tenants`: that statement of `due_rows.sql` for a table."""
        self._statement = due_tenants
        self._last = ""

    async def next_due(
        self, reader: Reader, now: int, limit: int, waiting: Collection[str] = ()
    ) -> tuple[list[str], bool]:
        """Return up to `limit` tenants with due rows that are not in `waiting`, and whether these are all.

        However many tenants are in `waiting`, they take no place of others. Looks at 10,000 tenants at most.
        """
        began_after = self._last
        most = limit + len(waiting)
        due, last = await self._scan(reader, now, most, began_after)
        if last is None and began_after:  # no tenant follows: go on with the first tenants, up to where this began
            first, last = await self._scan(reader, now, most - len(due), "")
            due += [tenant for tenant in first if tenant <= began_after]
            if last is not None and last >= began_after:
                last = None  # every tenant was looked at
        others = [tenant for tenant in due if tenant not in waiting]
        if len(others) > limit:
            last = others[limit - 1]
        self._last = last or ""
        return others[:limit], last is None

    def continue_after(self, tenant: str) -> None:
        """Let the next call continue after one of the tenants that the last call returned: the others got no turn."""
        self._last = tenant

    async def _scan(self, reader: Reader, now: int, limit: int, after: str) -> tuple[list[str], str | None]:
        """Return the due tenants after one, and the last tenant that was looked at; None if no tenant follows."""
        parameters = {"now": now, "limit": limit, "after": after, "looked_at": _MOST_LOOKED_AT}
        rows = await reader.fetch(self._statement, parameters)
        due = [row["tenant_id"] for row in rows if row["oldest"] is not None and row["oldest"] <= now]
        return due, rows[-1]["tenant_id"]


def _equal_shares(tenants: Sequence[str], limit: int) -> Shares:
    return [(tenant, limit // len(tenants)) for tenant in tenants]


class _Look(NamedTuple):
    """A look at the due rows of an instant that left out some tenants."""

    at: int
    has_more: bool
    """Whether other tenants may have more due rows than were taken."""


class FairRows:
    """The available rows of one table."""

    def __init__(self, sql: Callable[[str], str], *, takes_away: bool) -> None:
        """`sql` returns a statement of `due_rows.sql` for the table.

        `takes_away`: rows that were taken are not available to the next statement of the transaction.
        """
        self._sql = cache(sql)
        self._takes_away = takes_away
        self.turns = TenantTurns(sql("due_tenants"))
        self._look: _Look | None = None
        """What was found the last time, if some tenants were left out."""

    async def take(
        self,
        tx: Transaction,
        now: int,
        limit: int,
        waiting: Collection[str],
        *,
        of_tenants: Callable[[Shares], Awaitable[Sequence[Row]]],
        oldest: Callable[[list[Row], int], Awaitable[list[Row]]],
    ) -> list[Row]:
        """Take up to `limit` rows that are available at `now`, of the tenants that are not in `waiting`.

        If more rows are available, each tenant gets an equal share first, and the oldest rows get the rest.

        `of_tenants` takes the oldest rows of tenants. `oldest` returns the taken rows and up to so many of the oldest
        others.
        """
        self._look = None
        if waiting:
            return await self._take_beside(waiting, tx, now, limit, of_tenants)
        (row,) = await tx.fetch(self._sql("count_available"), {"now": now, "limit": limit + 1})
        if (available := row["count"]) <= limit:
            return await oldest([], available) if available else []
        tenants, are_all = await self.turns.next_due(tx, now, limit)
        if are_all and len(tenants) == 1:  # the oldest rows are those of this tenant
            return await oldest([], limit)
        rows = list(await of_tenants(_equal_shares(tenants, limit)))
        return await oldest(rows, limit - len(rows)) if len(rows) < limit else rows

    async def _take_beside(
        self,
        waiting: Collection[str],
        tx: Transaction,
        now: int,
        limit: int,
        of_tenants: Callable[[Shares], Awaitable[Sequence[Row]]],
    ) -> list[Row]:
        """Take equal shares of the tenants that are not in `waiting`, then more rows of those that may have more.

        The oldest of all rows cannot have the rest, as in `take`: they may be rows of `waiting`.
        """
        tenants, are_all = await self.turns.next_due(tx, now, limit, waiting)
        shares = _equal_shares(tenants, limit)
        rows = list(await of_tenants(shares))
        counts = Counter(row["tenant_id"] for row in rows)
        full = [tenant for tenant, share in shares if counts[tenant] >= share]
        self._look = _Look(now, has_more=bool(full) or not are_all)
        if self._takes_away:  # otherwise `of_tenants` would return the same rows again
            for tenant in full:
                if rest := limit - len(rows):
                    rows += await of_tenants([(tenant, rest)])
        return rows

    def look_again(self) -> None:
        """Forget what was found: rows have become available since."""
        self._look = None

    async def next_available(self, reader: Reader) -> int | None:
        """Return when to take rows again; None if no row is waiting.

        After a look that left out tenants, their due rows do not count, and the next look follows soon.
        """
        at: int | None
        if (look := self._look) is None:
            (row,) = await reader.fetch(self._sql("next_available"))
            at = row["at"]
            return at
        if look.has_more:
            return look.at
        (row,) = await reader.fetch(self._sql("next_available_after"), {"now": look.at})
        at, poll_at = row["at"], look.at + _POLL_MS
        return poll_at if at is None else min(at, poll_at)


class DueRows(FairRows):
    """The due rows of a table, locked for one transaction. A row that another transaction has locked is left out."""

    def __init__(self, table: DueTable) -> None:
        super().__init__(table.sql, takes_away=False)
        self._key = table.key
        self._key_of = itemgetter(*table.key)
        self._due_since = itemgetter(table.order[0])

    async def select(self, tx: Transaction, now: int, limit: int, waiting: Collection[str] = ()) -> list[Row]:
        """Lock and return up to `limit` due rows fairly, as `take`, in the order in which they became due.

        Rows with a damaged key are left out: nothing can be written to them, so they would be handled in each pass.
        """

        async def select_shares(shares: Shares) -> Sequence[Row]:
            """Return the oldest due rows of tenants, without the locked ones."""
            each = [{"tenant_id": name, "now": now, "limit": share} for name, share in shares]
            return await tx.fetch_each(self._sql("due_of_tenant") + "\n/* skip locked */", each)

        async def add_oldest(rows: list[Row], count: int) -> list[Row]:
            """Return `rows` and `count` of the oldest others. These are among the oldest `len(rows) + count` rows."""
            known = set(map(self._key_of, rows))
            oldest = await tx.fetch(self._sql("due"), {"now": now, "limit": len(rows) + count})
            others = [row for row in oldest if self._key_of(row) not in known]
            return rows + others[:count]

        rows = await self.take(tx, now, limit, waiting, of_tenants=select_shares, oldest=add_oldest)
        damaged = {key for key in map(self._key_of, rows) if any(_DAMAGE in str(part) for part in key)}
        if damaged:  # a key that finds its row is not damaged: its id has this character
            damaged -= set(map(self._key_of, await self.select_keys(tx, damaged, now)))
        return sorted((row for row in rows if self._key_of(row) not in damaged), key=self._due_since)

    async def select_keys(self, tx: Transaction, keys: Iterable[Any], now: int) -> list[Row]:
        """Lock and return the rows among `keys` that are due at `now`."""
        many = [{**dict(zip(self._key, key, strict=True)), "now": now} for key in sorted(keys)]
        return list(await tx.fetch_each(self._sql("due_by_key"), many))

    async def find(self, reader: Reader, tenants: Collection[str], now: int, limit: int) -> list[Row]:
        """Return the due rows of tenants, the oldest `limit` of each. Locks none."""
        each = [{"tenant_id": tenant, "now": now, "limit": limit} for tenant in tenants]
        return list(await reader.fetch_each(self._sql("due_of_tenant"), each))

    async def lock_oldest(self, tx: Transaction, tenants: Collection[str], now: int) -> list[Row]:
        """Lock and return the oldest row of each tenant, if that is due, in the order of the tenants.

        A tenant whose oldest row is locked is skipped: its next row may need what the other transaction has.
        """
        each = [{"tenant_id": tenant, "now": now} for tenant in sorted(tenants)]
        return list(await tx.fetch_each(self._sql("oldest_of_tenant"), each))

    async def postpone(self, tx: Transaction, retries: Mapping[Any, Retry]) -> None:
        """Let locked rows wait, by their keys, with the error of each."""
        many = [
            {**dict(zip(self._key, key, strict=True)), "retry_at": at, "error": error}
            for key, (at, error) in sorted(retries.items())
        ]
        await tx.executemany(self._sql("postpone"), many)
