"""The lease: exclusive access to a row for a limited time, for any table that has the lease columns.

The columns are `available_at`, `lease_token`, `attempt`, `last_error` and `tenant_id`. The table needs two indexes over
the rows with an `available_at`: (available_at) and (tenant_id, oldest_first). If the table has an ordinal, both indexes
end with it. The states of a row are in `timer_service.core`.
"""

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from timer_service.core.due.claim_bytes import split_by_bytes
from timer_service.core.due.claim_weigher import Weigher
from timer_service.core.due.tenant_turns import TenantTurns, in_turn
from timer_service.core.due.waiting_tenants import Look, take_beside
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.budget import DEFAULT_BUDGET

_SQL = load_sql("timer_service.core.due", "lease.sql")

DEATHS_ALONE = 3
"""A row is given up if the process dies this many times while it handles this row alone."""
_MOST_WRITTEN = 4
"""How many times the bytes of a claim its rows may have before those that do not fit are released."""
GIVEN_UP = "gave up: claimed and never settled"
"""The error of a row that is given up because of such deaths."""


class Expiry(NamedTuple):
    """How rows expire: completed at this instant or later, a row gets another state than `done`."""

    expires_at: str
    """The column in `claimed` for the instant from which the row is expired; NULL: never."""
    expired: str
    """The state of an expired row."""
    expired_at: str
    """The column for the instant of completion of an expired row."""


@dataclass(frozen=True, slots=True)
class LeasedTable:
    """A table whose rows are claimed: its key, the names of its states, and the columns that a claim returns."""

    name: str
    key: tuple[str, ...]
    claimed: tuple[str, ...]
    """The columns that a claim returns, including the key. The lease columns are added."""
    oldest_first: str
    """The column in `claimed` that orders rows: the instant when the row became available first."""
    state: str
    waiting: str
    held: str
    buried: str
    done: str | None = None
    """None: a completed row is deleted."""
    done_at: str | None = None
    """The column for the instant of completion, if a completed row is kept."""
    ordinal: str | None = None
    """The column in `claimed` that orders rows with the same instant, if their order matters."""
    due_at_once: str = "FALSE"
    """The condition for rows that are due when they are written, so that `oldest_first` is never a later instant."""
    large: str | None = None
    """The column in `claimed` that may hold a long text."""
    expiry: Expiry | None = None
    """None: rows never expire."""
    lane: tuple[str, ...] = ()
    """The columns of a lane, if rows are claimed by lane. An index over them and `available_at` is needed."""
    holder: tuple[str, ...] = ()
    """The columns that a claim of a lane sets. They are NULL while no claim holds the row."""
    counted_from: str | None = None
    """The column for the instant from which the lease of a lane counts. It stays when the row is released: if the clock
    was ahead, the row is due by this clock only."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that define the order in which rows are fired."""
        return (self.oldest_first,) if self.ordinal is None else (self.oldest_first, self.ordinal)

    def sql(self, name: str) -> str:
        """Return the named statement of `lease.sql` for this table."""
        claimed = list(self.claimed)
        if self.large is not None:
            claimed.remove(self.large)
            claimed.append(f"CASE WHEN OCTET_LENGTH({self.large}) <= :inline THEN {self.large} END AS {self.large}")
        counted = "" if self.counted_from is None else f", {self.counted_from} = :now"
        return _SQL[name].format(
            table=self.name,
            key=", ".join(self.key),
            key_is=" AND ".join(f"{column} = :{column}" for column in self.key),
            claimed=", ".join(claimed),
            size="" if self.large is None else f", COALESCE(OCTET_LENGTH({self.large}), 0) AS size",
            large=self.large,
            state=self.state,
            waiting=self.waiting,
            held=self.held,
            oldest_first=self.oldest_first,
            then="" if self.ordinal is None else f", {self.ordinal}",
            buried=self.buried,
            complete=self._complete,
            lane_is=" AND ".join(f"{column} = :{column}" for column in self.lane),
            hold="".join(f", {column} = :{column}" for column in self.holder) + counted,
            unhold="".join(f", {column} = NULL" for column in self.holder),
        )

    @property
    def _complete(self) -> str:
        """The assignments that complete a row at `:at`."""
        if self.expiry is None:
            return f"{self.state} = '{self.done}', {self.done_at} = :at"
        expires_at, expired, expired_at = self.expiry
        return (
            f"{self.state} = CASE WHEN {expires_at} <= :at THEN '{expired}' ELSE '{self.done}' END, "
            f"{self.done_at} = CASE WHEN {expires_at} <= :at THEN NULL ELSE :at END, "
            f"{expired_at} = CASE WHEN {expires_at} <= :at THEN :at END"
        )

    def count_expired(self, rows: Sequence[Row], at: int) -> int:
        """Return how many claimed rows are expired at an instant."""
        if self.expiry is None:
            return 0
        expiries = map(itemgetter(self.expiry.expires_at), rows)
        return sum(expires_at <= at for expires_at in expiries if expires_at is not None)


@dataclass(frozen=True, slots=True)
class Failure:
    """A claimed row that could not be fired, the error, and when the row may be claimed again."""

    row: Row
    error: str
    retry_at: int
    counts: bool = True
    """Whether the row may be at fault, so that the attempt counts."""


@dataclass(slots=True)
class _Claim:
    """A claim in progress."""

    parameters: Mapping[str, Any]
    turns_began_after: str
    """The tenant after which the turns of this claim began."""
    look: Look | None = None
    """What it has found if it left out waiting tenants."""
    is_bounded: bool = False
    """Whether it has written fewer rows than it could, because of their bytes."""

    @property
    def now(self) -> int:
        now: int = self.parameters["now"]
        return now


class Lease:
    """The claims on the rows of one table.

    A method that settles returns how many rows it changed. If that is fewer than it was given, the other leases were
    lost: the lease expired and the row was claimed again, or a command changed the row. Those rows stay as they are.
    """

    def __init__(
        self,
        table: LeasedTable,
        visibility_timeout: timedelta,
        claim_bytes: int = DEFAULT_BUDGET.claim,
    ) -> None:
        """`claim_bytes`: how long the texts in the large column may be, for all rows of a claim."""
        self.table = table
        self._look: Look | None = None
        """What the last claim has found if it left out waiting tenants."""
        self.most_bytes = claim_bytes
        self._most_written = _MOST_WRITTEN * claim_bytes
        self.claimed_bytes = 0
        """How long the texts of the last claim are."""
        self._fitting: float = math.inf
        """How many rows to claim next, if the last claims had more than `claim_bytes`."""
        self.was_cut = False
        """Whether the last claim left out rows because they are too large. These can be claimed at once."""
        self._load = table.sql("load")
        self.hold_ms = visibility_timeout // timedelta(milliseconds=1)
        """How long a lease lasts."""
        self._claim = table.sql("claim")
        self._claim_alone = table.sql("claim_alone")
        self._read_claim = table.sql("read_claim")
        self._count_available = table.sql("count_available")
        self._weigher = Weigher(table.sql, has_texts=table.large is not None)
        self._claim_of_tenant = table.sql("claim_of_tenant")
        self._turns = TenantTurns(table.sql("due_tenants"))
        self._order_of = itemgetter(*table.order, *table.key)
        self.key_of = itemgetter(*table.key)
        """Returns the key of a row."""
        deletes = table.done is None
        self._complete = table.sql("complete_and_delete" if deletes else "complete")
        self._complete_claim = table.sql("complete_claim_and_delete" if deletes else "complete_claim")
        self._complete_claim_shared = table.sql(
            "complete_claim_shared_and_delete" if deletes else "complete_claim_shared"
        )
        self._lock = table.sql("lock")
        self._lock_free = table.sql("lock_free")
        self._still_held = table.sql("still_held")
        self._discount = table.sql("discount")
        self._charge = table.sql("charge")
        self._retry = table.sql("retry")
        self._bury = table.sql("bury")
        self._release = table.sql("release")
        self._void = table.sql("void")
        self._next_available = table.sql("next_available")
        self._next_available_after = table.sql("next_available_after")

    async def claim(
        self, tx: Transaction, now: int, limit: int, *, alone: bool = False, waiting: Collection[str] = ()
    ) -> list[Row]:
        """Claim up to `limit` rows that are available at `now`, and add 1 to the `attempt` of each.

        `alone`: no other process uses the database. Measured on SQLite in claims of 1,000, a row then takes 3.5 µs
        instead of 5.0 µs.

        If more rows are available, each tenant gets an equal share first, and the oldest rows get the rest. So many
        rows of one tenant do not delay a single row of another tenant. The bytes of a claim are shared in the same way.
        A single row may have more than the bytes of a claim. The tenants `waiting` are left out.
        """
        limit = int(min(limit, self._fitting))
        parameters = {"now": now, "until": now + self.hold_ms, "token": secrets.token_hex(8)}
        if self.table.large is not None:
            parameters["inline"] = self.most_bytes // limit
        claim = _Claim(parameters, self._turns.last)
        if waiting:
            rows = await self._claim_beside(tx, claim, limit, waiting)
        else:
            rows = await self._claim_all(tx, claim, limit, alone=alone)
        return await self._bound_bytes(tx, claim, sorted(rows, key=self._order_of), limit)

    async def _claim_all(self, tx: Transaction, claim: _Claim, limit: int, *, alone: bool) -> list[Row]:
        available = await self.count_available(tx, claim.now, limit + 1)
        rows = await self._claim_shares(tx, claim, limit) if available > limit else []
        rest = min(available, limit) - len(rows)
        if not rest or claim.is_bounded:
            return rows
        room = max(self._most_written - self._bytes_of(rows), 0)
        fitting = await self._weigher.count_fitting(tx, claim.now, rest, room, least=0 if rows else 1)
        claim.is_bounded = fitting < rest
        if claim.is_bounded and not rows:  # the large rows of one tenant leave room for the rows of others
            rows = await self._claim_shares(tx, claim, limit)
            fitting = 0 if rows else fitting
        if fitting:
            if alone:
                await tx.execute(self._claim_alone, {**claim.parameters, "limit": fitting})
                return list(await tx.fetch(self._read_claim, claim.parameters))
            rows += await tx.fetch(self._claim, {**claim.parameters, "limit": fitting})
        return rows

    async def _claim_beside(self, tx: Transaction, claim: _Claim, limit: int, waiting: Collection[str]) -> list[Row]:
        """Claim rows of tenants that do not wait: equal shares, and then more of the tenants that have more."""
        fetch = partial(self._claim_each, tx, claim)
        rows, look = await take_beside(tx, self._turns, fetch, now=claim.now, limit=limit, waiting=waiting)
        for tenant in look.full:
            size = self._bytes_of(rows)
            if (rest := limit - len(rows)) and not claim.is_bounded and size <= self.most_bytes:
                rows += await self._claim_each(tx, claim, [(tenant, rest)], size)
        claim.look = look
        return rows

    async def _bound_bytes(self, tx: Transaction, claim: _Claim, rows: list[Row], limit: int) -> list[Row]:
        """Load the large texts of claimed rows as far as these fit into the bytes of a claim; release the other rows.

        Tenants of which no row fits have the next turns.

        The claim returns only texts that are short enough for all of its rows. A sum over the rows in the statement of
        the claim would take half as long as the claim itself.
        """
        column = self.table.large
        inline = self.most_bytes // limit
        sizes = [] if column is None else [row["size"] for row in rows]
        if column is None or max(sizes, default=0) <= inline:
            self._record(claim, len(rows), limit, sum(sizes), was_cut=claim.is_bounded)
            return rows
        turns = in_turn({row["tenant_id"] for row in rows}, claim.turns_began_after)
        kept, left, last_turn = split_by_bytes(rows, self.most_bytes, turns)
        if last_turn is not None:
            self._turns.go_back(last_turn, claim.turns_began_after)
        await self.release(tx, left)
        missing = [self._held(row) for row in kept if row["size"] > inline]
        texts = {self.key_of(row): row[column] for row in await tx.fetch_each(self._load, missing)}
        was_cut = claim.is_bounded or bool(left)
        self._record(claim, len(kept), limit, sum(row["size"] for row in kept), was_cut=was_cut)
        columns = (*self.table.claimed, "attempt", "lease_token", "available_at")
        return [
            {**{name: row[name] for name in columns}, column: texts[key]} if (key := self.key_of(row)) in texts else row
            for row in kept
        ]

    def _record(self, claim: _Claim, count: int, limit: int, claimed_bytes: int, *, was_cut: bool) -> None:
        """Record what the claim of `count` rows, of at most `limit`, means for the next one."""
        self.claimed_bytes = claimed_bytes
        self.was_cut = was_cut
        self._fitting = 2 * max(count, 1) if was_cut else max(self._fitting, 2 * limit)
        self._look = claim.look
        if was_cut and self._look is not None:  # tenants that got less than their shares may have more due rows
            self._look = self._look._replace(all_looked_at=False)

    async def count_available(self, reader: Reader, now: int, limit: int) -> int:
        """Return how many rows may be claimed at `now`, at most `limit`."""
        (row,) = await reader.fetch(self._count_available, {"now": now, "limit": limit})
        count: int = row["count"]
        return count

    async def _claim_shares(self, tx: Transaction, claim: _Claim, limit: int) -> list[Row]:
        return list(await self._claim_each(tx, claim, await self._turns.shares(tx, claim.now, limit)))

    async def _claim_each(
        self, tx: Transaction, claim: _Claim, shares: Sequence[tuple[str, int]], claimed_bytes: int = 0
    ) -> Sequence[Row]:
        fitting = await self._weigher.fit_shares(tx, claim.now, shares, self._most_written - claimed_bytes)
        claim.is_bounded = claim.is_bounded or fitting != shares
        if len(fitting) < len(shares):
            self._turns.continue_after(fitting[-1][0])
        each = [{**claim.parameters, "tenant_id": tenant, "limit": share} for tenant, share in fitting]
        return await tx.fetch_each(self._claim_of_tenant, each)

    def _bytes_of(self, rows: Sequence[Row]) -> int:
        return 0 if self.table.large is None else sum(row["size"] for row in rows)

    async def lock(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Lock held rows. A transaction that settles rows in several ways locks all of them first, in one order."""
        await tx.fetch_each(self._lock, [self._held(row) for row in self._in_key_order(rows)])

    async def find_free(self, tx: Transaction, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Lock the held rows that no other transaction has locked. Return these, and the other held rows.

        It never waits, so it cannot deadlock.
        """
        held = await self._filter(tx, self._still_held, rows)
        free = await self._filter(tx, self._lock_free, held)
        keys = set(map(self.key_of, free))
        return free, [row for row in held if self.key_of(row) not in keys]

    async def _filter(self, tx: Transaction, statement: str, rows: Sequence[Row]) -> list[Row]:
        """Return the rows whose keys a statement returns."""
        found = await tx.fetch_each(statement, [self._held(row) for row in self._in_key_order(rows)])
        keys = set(map(self.key_of, found))
        return [row for row in rows if self.key_of(row) in keys]

    async def complete(self, tx: Transaction, rows: Sequence[Row], at: int) -> int:
        """Complete rows at the instant `at`."""
        return await tx.executemany(self._complete, [self._held(row, at=at) for row in self._in_key_order(rows)])

    async def complete_claim(self, tx: Transaction, rows: Sequence[Row], at: int, *, shared: bool) -> int:
        """Complete all rows of one claim at the instant `at`, in one statement. No row of it may have been charged.

        `shared`: other processes use the database too. Rows that another transaction has locked are then skipped,
        because this statement does not lock rows in the order of their keys. Complete them with `complete`.

        Measured on SQLite: completing row by row takes twice as long, because the threads exchange the interpreter's
        lock for every row.
        """
        claim = rows[0]
        statement = self._complete_claim_shared if shared else self._complete_claim
        return await tx.execute(statement, {"until": claim["available_at"], "token": claim["lease_token"], "at": at})

    async def discount(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Take back the attempt that the claim of these rows added, in the transaction of the claim."""
        await tx.executemany(self._discount, [self._held(row) for row in self._in_key_order(rows)])

    async def charge(self, tx: Transaction, row: Row, now: int) -> bool:
        """Add an attempt to a claimed row, and extend its lease from `now`. Return False if the lease was lost."""
        return bool(await tx.execute(self._charge, self._held(row, until=now + self.hold_ms)))

    async def retry(self, tx: Transaction, failures: Sequence[Failure]) -> int:
        """Return rows to the waiting state. Each is available again at its `retry_at`."""
        return await tx.executemany(
            self._retry,
            [
                self._held(each.row, at=each.retry_at, error=each.error, uncounted=int(not each.counts))
                for each in self._failures_in_key_order(failures)
            ],
        )

    async def bury(self, tx: Transaction, failures: Sequence[Failure]) -> int:
        """Give rows up. They stay in the table and are not claimed again."""
        return await tx.executemany(
            self._bury, [self._held(each.row, error=each.error) for each in self._failures_in_key_order(failures)]
        )

    async def release(self, tx: Transaction, rows: Sequence[Row]) -> int:
        """Return rows to the waiting state as if they had not been claimed: available at once, in their old order."""
        return await tx.executemany(self._release, [self._held(row) for row in self._in_key_order(rows)])

    async def void(self, tx: Transaction, now: int) -> int:
        """End every lease. The caller knows that no other process can hold one. The attempts stay counted."""
        return await tx.execute(self._void, {"now": now, "until": now + self.hold_ms})

    def claimed_at(self, row: Row) -> int:
        """Return when a row was claimed."""
        at: int = row["available_at"] - self.hold_ms
        return at

    async def next_available(self, reader: Reader) -> int | None:
        """Return when the next row may be claimed; None if no row is waiting."""
        if self._look is not None:
            return await self._look.next_at(reader, self._next_available_after)
        (row,) = await reader.fetch(self._next_available)
        at: int | None = row["at"]
        return at

    def _held(self, row: Row, **values: Any) -> Mapping[str, Any]:
        return {column: row[column] for column in self.table.key} | {"token": row["lease_token"]} | values

    def _in_key_order(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows in the order in which every transaction locks them, so that transactions cannot deadlock."""
        return sorted(rows, key=self.key_of)

    def _failures_in_key_order(self, failures: Sequence[Failure]) -> list[Failure]:
        return sorted(failures, key=lambda failure: self.key_of(failure.row))
