"""The lease: exclusive access to a row for a limited time, for any table that has the lease columns.

The columns are `state`, `available_at`, `lease_token`, `attempt`, `last_error` and `tenant_id`. The table needs two
indexes over the rows with an `available_at`: (available_at) and (tenant_id, oldest_first). If the table has an ordinal,
both indexes end with it. The states of a row are in `timer_service.core`.
"""

import logging
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any

from timer_service.core.due.due_rows import SQL, FairRows, Shares
from timer_service.core.due.long_texts import LongTexts
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction

log = logging.getLogger(__name__)

_SQL = {**SQL, **load_sql("timer_service.core.due", "lease.sql")}
_CLAIMS = {
    "claim": ("TRUE", "available_at"),
    "claim_of_tenant": ("tenant_id = :tenant_id AND {oldest_first} <= :now", "{oldest_first}"),
}
"""Which rows each claim takes, and by which column it orders them."""
_CLAIM = _SQL["claim"]
_SQL |= {name: _CLAIM.replace("{which}", which).replace("{by}", by) for name, (which, by) in _CLAIMS.items()}

DEATHS_ALONE = 3
"""A row is given up if the process dies this many times while it handles this row alone."""
GIVEN_UP = "gave up: claimed and never settled"
"""The error of a row that is given up because of such deaths."""


@dataclass(frozen=True, slots=True)
class LeasedTable:
    """A table whose rows are claimed: its key, and the columns that a claim returns."""

    name: str
    key: tuple[str, ...]
    claimed: tuple[str, ...]
    """The columns that a claim returns, including the key. The lease columns are added."""
    oldest_first: str
    """The column in `claimed` that orders rows: the instant when the row became available first."""
    buried: str
    """The state of a row that was given up. A row that is waiting or held keeps its state."""
    complete: str | None = None
    """The assignments that complete a row at `:at`; None: a completed row is deleted."""
    ordinal: str | None = None
    """The column in `claimed` that orders rows with the same instant, if their order matters."""
    due_at_once: str = "FALSE"
    """The condition for rows that are due when they are written, so that `oldest_first` is never a later instant."""
    texts: LongTexts | None = None
    """Its long texts, if it has any. Their columns are in `claimed`."""
    expires_at: str | None = None
    """The column in `claimed` for the instant from which a completed row counts as expired."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that define the order in which rows are fired."""
        return (self.oldest_first,) if self.ordinal is None else (self.oldest_first, self.ordinal)

    def sql(self, name: str) -> str:
        """Return the named statement of `lease.sql` or `due_rows.sql` for this table."""
        return _SQL[name].format(
            table=self.name,
            available="available_at",
            oldest=self.oldest_first,
            order=self.oldest_first,
            where="available_at IS NOT NULL",
            key=", ".join(self.key),
            key_is=" AND ".join(f"{column} = :{column}" for column in self.key),
            claimed=", ".join(self.claimed),
            oldest_first=self.oldest_first,
            then="" if self.ordinal is None else f", {self.ordinal}",
            buried=self.buried,
            complete=self._complete,
        )

    @property
    def _complete(self) -> str:
        """What completes rows at `:at`: a statement without its condition."""
        if self.complete is None:
            return f"DELETE FROM {self.name}"  # noqa: S608 - no user input
        return f"UPDATE {self.name} SET {self.complete}, available_at = NULL, lease_token = NULL, last_error = NULL"  # noqa: S608

    def count_expired(self, rows: Sequence[Row], at: int) -> int:
        """Return how many claimed rows are expired at an instant."""
        if self.expires_at is None:
            return 0
        expiries = map(itemgetter(self.expires_at), rows)
        return sum(expires_at <= at for expires_at in expiries if expires_at is not None)


@dataclass(frozen=True, slots=True)
class Failure:
    """A claimed row that could not be fired, the error, and when the row may be claimed again."""

    row: Row
    error: str
    retry_at: int
    counts: bool = True
    """Whether the row may be at fault, so that the attempt counts."""


class Lease(FairRows):
    """The claims on the rows of one table.

    A method that settles returns how many rows it changed. If that is fewer than it was given, the other leases were
    lost: the lease expired and the row was claimed again, or a command changed the row. Those rows stay as they are.
    """

    def __init__(self, table: LeasedTable, visibility_timeout: timedelta) -> None:
        super().__init__(table.sql, takes_away=True)
        self.table = table
        self.hold_ms = visibility_timeout // timedelta(milliseconds=1)
        """How long a lease lasts."""
        self._order_of = itemgetter(*table.order, *table.key)
        self.key_of = itemgetter(*table.key)
        """Returns the key of a row."""
        self._texts = table.texts if table.complete is None else None
        """The texts that are deleted with completed rows."""

    async def claim(
        self, tx: Transaction, now: int, limit: int, *, alone: bool = False, waiting: Collection[str] = ()
    ) -> list[Row]:
        """Claim up to `limit` rows that are available at `now`, and add 1 to the `attempt` of each.

        `alone`: no other process uses the database, which is SQLite then: rows are found by their row ids. The rows are
        shared out as `take` says, without the tenants `waiting`.
        """
        parameters = {"now": now, "until": now + self.hold_ms, "token": secrets.token_hex(8)}

        async def claim_shares(shares: Shares) -> Sequence[Row]:
            """Claim the oldest rows of tenants."""
            each = [{**parameters, "tenant_id": tenant, "limit": share} for tenant, share in shares]
            return await tx.fetch_each(self._sql("claim_of_tenant"), each)

        async def claim_oldest(rows: list[Row], count: int) -> list[Row]:
            """Claim the oldest `count` rows. Return `rows`, which were claimed before, and these."""
            if not alone:
                return [*rows, *await tx.fetch(self._sql("claim"), {**parameters, "limit": count})]
            await tx.execute(self._sql("claim_alone"), {**parameters, "limit": count})
            return list(await tx.fetch(self._sql("read_claim"), parameters))  # all rows with the token, so also `rows`

        rows = await self.take(tx, now, limit, waiting, of_tenants=claim_shares, oldest=claim_oldest)
        return sorted(rows, key=self._order_of)

    async def find_free(self, tx: Transaction, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Lock the held rows that no other transaction has locked. Return these, and the held rows that are locked.

        Rows that lost their leases are in neither list. It never waits, so it cannot deadlock.
        """
        held = await self._filter(tx, self._sql("still_held"), rows)
        free = await self._filter(tx, self._sql("still_held") + "\n/* skip locked */", held)
        keys = set(map(self.key_of, free))
        return free, [row for row in held if self.key_of(row) not in keys]

    async def _filter(self, tx: Transaction, statement: str, rows: Sequence[Row]) -> list[Row]:
        """Return the rows whose keys a statement returns."""
        found = await tx.fetch_each(statement, self._in_key_order(map(self._held, rows)))
        keys = set(map(self.key_of, found))
        return [row for row in rows if self.key_of(row) in keys]

    async def complete(self, tx: Transaction, rows: Sequence[Row], at: int) -> int:
        """Complete rows at the instant `at`."""
        count = await tx.executemany(self._sql("complete"), self._in_key_order(self._held(row, at=at) for row in rows))
        await self._delete_texts(tx, rows)
        return count

    async def complete_claim(self, tx: Transaction, rows: Sequence[Row], at: int, *, shared: bool) -> int:
        """Complete all rows of one claim at the instant `at`, in one statement.

        `shared`: other processes use the database too. Rows that another transaction has locked are then skipped,
        because this statement does not lock rows in the order of their keys. Complete them with `complete`.
        """
        claim = rows[0]
        statement = self._sql("complete_claim_shared" if shared else "complete_claim")
        held = {"until": claim["available_at"], "token": claim["lease_token"], "at": at}
        count = await tx.execute(statement, held)
        await self._delete_texts(tx, rows)
        return count

    async def _delete_texts(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Delete the long texts of those rows that are deleted now, if completed rows are deleted."""
        if self._texts is not None:
            await self._texts.delete_of_deleted(tx, rows)

    async def retry(self, tx: Transaction, failures: Sequence[Failure]) -> int:
        """Return rows to the waiting state. Each is available again at its `retry_at`."""
        many = (
            self._held(each.row, at=each.retry_at, error=each.error, uncounted=int(not each.counts))
            for each in failures
        )
        return await tx.executemany(self._sql("retry"), self._in_key_order(many))

    async def bury(self, tx: Transaction, failures: Sequence[Failure]) -> int:
        """Give rows up. They stay in the table and are not claimed again."""
        many = (self._held(each.row, error=each.error) for each in failures)
        return await tx.executemany(self._sql("bury"), self._in_key_order(many))

    async def release(self, tx: Transaction, rows: Sequence[Row]) -> int:
        """Return rows to the waiting state as if they had not been claimed: available at once, in their old order."""
        if rows:
            self.look_again()  # the rows that `take` left out may be these
        return await tx.executemany(self._sql("release"), self._in_key_order(map(self._held, rows)))

    async def void(self, tx: Transaction, now: int) -> int:
        """End every lease. The caller knows that no other process can hold one. The attempts stay counted."""
        return await tx.execute(self._sql("void"), {"now": now, "until": now + self.hold_ms})

    def claimed_at(self, row: Row) -> int:
        """Return when a row was claimed."""
        at: int = row["available_at"] - self.hold_ms
        return at

    def _held(self, row: Row, **values: Any) -> Mapping[str, Any]:
        """Return the parameters of a statement for a row under its lease: key, token and `values`."""
        return {column: row[column] for column in self.table.key} | {"token": row["lease_token"]} | values

    def _in_key_order(self, held: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return parameters in the order in which all transactions lock rows, so that they cannot deadlock."""
        return sorted(held, key=self.key_of)


async def take_over_claims(database: Database, lease: Lease, now: int) -> None:
    """End the leases of a dead process, if only one process at a time can use the database."""
    if not database.exclusive:
        return
    count = await in_transaction(database, lambda tx: lease.void(tx, now))
    if count:
        log.info("ended the leases of a dead process", extra={"table": lease.table.name, "count": count})
