"""The due rows of a table, selected fairly and locked for one transaction, without a lease.

A worker that finishes rows in the transaction that selects them needs no lease: if it dies, the rows are due as before.
The table has the columns `tenant_id` and `available_at`, and two indexes over the rows with an `available_at`:
(available_at), and (tenant_id, available_at, the rest of the key).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from timer_service.core.due.fair_rows import FairRows, Shares, Steps
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.core.due", "lease.sql")
NOTHING: Mapping[str, int] = {}
_DAMAGE = "\ufffd"
"""What stands for damage in a text of SQLite. An id may also have it."""


def may_be_damaged(key: Iterable[Any]) -> bool:
    """Return whether a key that was read may be another one in the database, so that no statement finds it."""
    return any(_DAMAGE in str(part) for part in key)


@dataclass(frozen=True, slots=True)
class DueTable:
    """A table whose rows become due: its key, and the columns that a select returns."""

    name: str
    key: tuple[str, ...]
    """The columns of the key. The first one is `tenant_id`."""
    columns: tuple[str, ...]
    """The selected columns or expressions. They include the key and `available_at`."""

    def sql(self, name: str) -> str:
        """Return the named statement of `lease.sql` for this table."""
        return _SQL[name].format(
            table=self.name,
            key=", ".join(self.key),
            key_is=" AND ".join(f"{column} = :{column}" for column in self.key),
            columns=", ".join(self.columns),
            oldest_first="available_at",
            rest_of_key=", ".join(self.key[1:]),
        )


def no_tenants(_now: int) -> Collection[str]:
    """Let no tenant wait."""
    return ()


class DueRows(FairRows):
    """Selects due rows. No row is returned that another transaction has locked."""

    def __init__(self, table: DueTable, waiting: Callable[[int], Collection[str]] = no_tenants) -> None:
        """`waiting` returns the tenants whose rows are left out at an instant."""
        super().__init__(table.sql, takes_away=False)
        self._waiting = waiting
        self.key_of = itemgetter(*table.key)
        """Returns the key of a row."""
        self._table = table
        self._due = table.sql("due")
        self._due_of_tenant = table.sql("due_of_tenant")
        self._due_by_key = table.sql("due_by_key")

    async def select(self, tx: Transaction, now: int, limit: int, beyond: Mapping[str, int] = NOTHING) -> list[Row]:
        """Lock and return up to `limit` rows that are due at `now`, in the order in which they became due.

        If more rows are due, each tenant gets an equal share first, and the oldest rows get the rest. A tenant in
        `beyond` gets so many rows in addition: its oldest rows are not those that come first. Rows with a damaged key
        are left out: nothing can be written to them, so they would be handled in each pass.
        """

        async def select_shares(shares: Shares) -> Sequence[Row]:
            each = [{"tenant_id": name, "now": now, "limit": share + beyond.get(name, 0)} for name, share in shares]
            return await tx.fetch_each(self._due_of_tenant, each)

        async def add_oldest(rows: list[Row], count: int) -> list[Row]:
            known = set(map(self.key_of, rows))
            most = len(rows) + count + sum(beyond.values())
            oldest = await tx.fetch(self._due, {"now": now, "limit": most})
            return rows + [row for row in oldest if self.key_of(row) not in known][: most - len(rows)]

        rows = await self.take(tx, now, limit, self._waiting(now), Steps(select_shares, add_oldest))
        return sorted(await self._without_damaged_keys(tx, rows, now), key=itemgetter("available_at"))

    async def _without_damaged_keys(self, tx: Transaction, rows: list[Row], now: int) -> list[Row]:
        doubtful = [key for key in map(self.key_of, rows) if may_be_damaged(key)]
        if not doubtful:
            return rows
        damaged = set(doubtful) - set(map(self.key_of, await self.select_keys(tx, doubtful, now)))
        return [row for row in rows if self.key_of(row) not in damaged]

    async def select_keys(self, tx: Transaction, keys: Sequence[Any], now: int) -> list[Row]:
        """Lock and return the rows among `keys` that are due at `now`."""
        many = [{**dict(zip(self._table.key, key, strict=True)), "now": now} for key in sorted(keys)]
        return list(await tx.fetch_each(self._due_by_key, many))
