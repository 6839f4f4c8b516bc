"""The lease: exclusive, expiring, fenced work on the rows of any table that has the lease columns.

The columns: `available_at`, `lease_token`, `attempt`, `last_error`, and `tenant_id`. The indexes, both over the rows
with an `available_at`: (available_at), and (tenant_id, oldest_first); each ends with the ordinal, where there is one.
See the state diagram in `timer_service.core`.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any

from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.core", "lease.sql")


@dataclass(frozen=True, slots=True)
class LeasedTable:
    """A table whose rows are claimed: what it calls its key and its states, and what a claim hands out."""

    name: str
    key: tuple[str, ...]
    claimed: tuple[str, ...]
    """Columns a claim hands out, besides those of the lease; the key is among them."""
    oldest_first: str
    """The claimed column that rows are fired in the order of: when each was first to be available."""
    state: str
    waiting: str
    held: str
    buried: str
    done: str | None = None
    """None: a completed row is deleted."""
    done_at: str | None = None
    """The column that takes the instant of completion, where the row stays."""
    ordinal: str | None = None
    """The claimed column that orders the rows of one instant, where their order matters."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that rows are fired in the order of."""
        return (self.oldest_first,) if self.ordinal is None else (self.oldest_first, self.ordinal)

    def sql(self, name: str) -> str:
        """Return the named statement of `lease.sql` for this table."""
        return _SQL[name].format(
            table=self.name,
            key=", ".join(self.key),
            key_is=" AND ".join(f"{column} = :{column}" for column in self.key),
            claimed=", ".join(self.claimed),
            state=self.state,
            waiting=self.waiting,
            held=self.held,
            oldest_first=self.oldest_first,
            then="" if self.ordinal is None else f", {self.ordinal}",
            done=self.done,
            buried=self.buried,
            done_at=self.done_at,
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A claimed row that could not be fired: why, and when it may be claimed again."""

    row: Row
    error: str
    retry_at: int


class Lease:
    """Claims and settles rows of one table.

    Each settling method returns how many rows it changed; fewer than it was given means that those leases were lost
    (run out and claimed anew, or the row was changed by a command), and that nothing was done to them.
    """

    def __init__(self, table: LeasedTable, visibility_timeout: timedelta) -> None:
        self.table = table
        self._hold_ms = visibility_timeout // timedelta(milliseconds=1)
        self._claim = table.sql("claim")
        self._count_available = table.sql("count_available")
        self._pending_tenants = table.sql("pending_tenants")
        self._claim_of_tenant = table.sql("claim_of_tenant")
        self._seen_tenant = ""
        self._place = itemgetter(*table.order)
        deletes = table.done is None
        self._complete = table.sql("complete_and_delete" if deletes else "complete")
        self._complete_claim = table.sql("complete_claim_and_delete" if deletes else "complete_claim")
        self._retry = table.sql("retry")
        self._bury = table.sql("bury")
        self._release = table.sql("release")
        self._extend = table.sql("extend")
        self._void = table.sql("void")
        self._next_available = table.sql("next_available")

    async def claim(self, tx: Transaction, now: int, limit: int) -> list[Row]:
        """Take up to `limit` rows that are available at `now`, each with `attempt` counted up.

        When more are available than that, every tenant gets an equal share first, so that one tenant's flood does not
        delay another's single row; what is left goes to the oldest.
        """
        claim = {"now": now, "until": now + self._hold_ms, "token": secrets.token_hex(8)}
        available = await self.count_available(tx, now, limit + 1)
        rows = await self._claim_shares(tx, claim, limit) if available > limit else []
        if left := min(available, limit) - len(rows):
            rows += await tx.fetch(self._claim, {**claim, "limit": left})
        return sorted(rows, key=self._place)

    async def count_available(self, reader: Reader, now: int, limit: int) -> int:
        """Count the rows that may be claimed at `now`, no further than `limit`."""
        (row,) = await reader.fetch(self._count_available, {"now": now, "limit": limit})
        count: int = row["count"]
        return count

    async def _claim_shares(self, tx: Transaction, claim: Mapping[str, Any], limit: int) -> list[Row]:
        pending = await self._next_tenants(tx, limit)
        due = [row["tenant_id"] for row in pending if row["oldest"] <= claim["now"]]
        if len(due) == 1 and len(pending) < limit:  # nobody to be fair to
            return []
        shares = [{**claim, "tenant_id": tenant, "limit": limit // len(due)} for tenant in due]
        return list(await tx.fetch_each(self._claim_of_tenant, shares))

    async def _next_tenants(self, tx: Transaction, limit: int) -> list[Row]:
        """Name up to `limit` tenants that have pending rows, going on in a circle where the last claim ended."""
        seen = self._seen_tenant
        tenants = list(await tx.fetch(self._pending_tenants, {"after": seen, "limit": limit}))
        if seen and len(tenants) < limit:
            first = await tx.fetch(self._pending_tenants, {"after": "", "limit": limit - len(tenants)})
            tenants += [row for row in first if row["tenant_id"] <= seen]
        self._seen_tenant = tenants[-1]["tenant_id"] if len(tenants) == limit else ""
        return tenants

    async def complete(self, tx: Transaction, rows: Sequence[Row], at: int) -> int:
        """Settle rows as done at `at`."""
        return await tx.executemany(self._complete, [self._held(row, at=at) for row in rows])

    async def complete_claim(self, tx: Transaction, rows: Sequence[Row], at: int) -> int:
        """Settle all rows of one claim, none of them extended, as done at `at`, in one statement.

        Measured on SQLite: row by row, a thread that fires and one that settles hand each other the interpreter's lock
        for every row, and a batch takes twice as long.
        """
        claim = rows[0]
        return await tx.execute(
            self._complete_claim, {"until": claim["available_at"], "token": claim["lease_token"], "at": at}
        )

    async def retry(self, tx: Transaction, failures: Sequence[Failure]) -> int:
        """Give rows back until their `retry_at`."""
        return await tx.executemany(
            self._retry, [self._held(each.row, at=each.retry_at, error=each.error) for each in failures]
        )

    async def bury(self, tx: Transaction, failures: Sequence[Failure]) -> int:
        """Give rows up: they stay, visible, and are not claimed again."""
        return await tx.executemany(self._bury, [self._held(each.row, error=each.error) for each in failures])

    async def release(self, tx: Transaction, rows: Sequence[Row]) -> int:
        """Give rows back as if they had not been claimed: claimable at once, in their old place."""
        return await tx.executemany(self._release, [self._held(row) for row in rows])

    async def extend(self, tx: Transaction, rows: Sequence[Row], now: int) -> int:
        """Hold rows for a whole visibility timeout from `now`, however long they were held already."""
        return await tx.executemany(self._extend, [self._held(row, until=now + self._hold_ms) for row in rows])

    async def void(self, tx: Transaction, now: int) -> int:
        """End every lease there is: for whoever knows that no other process can hold one. Attempts stay counted."""
        return await tx.execute(self._void, {"now": now, "until": now + self._hold_ms})

    async def next_available(self, reader: Reader) -> int | None:
        """Return when the next row may be claimed, None when there is none to wait for."""
        (row,) = await reader.fetch(self._next_available)
        at: int | None = row["at"]
        return at

    def _held(self, row: Row, **values: Any) -> Mapping[str, Any]:
        return {column: row[column] for column in self.table.key} | {"token": row["lease_token"]} | values
