"""Settles the rows of claims, by the results of publishing."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar

from timer_service.core.due.lease import Failure, Lease
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import run_at_once
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_FUTILE = 5
"""If so many rows cannot be settled, each alone, and no other row was settled, the cause is not in the rows."""


@dataclass(slots=True)
class Settlement:
    """How to settle rows of one claim, which were fired at an instant."""

    at: int
    whole: bool = False
    """Whether these are all rows of the claim."""
    complete: list[Row] = field(default_factory=list)
    release: list[Row] = field(default_factory=list)
    retry: list[Failure] = field(default_factory=list)
    bury: list[Failure] = field(default_factory=list)
    completed: int = 0
    """How many of the rows were completed before, because the others were locked."""
    is_written: bool = False
    """Whether a transaction has written it. That may also be so if its task was cancelled."""

    @property
    def all_completed(self) -> bool:
        """Whether all rows of the claim are complete. One statement can then settle them."""
        return self.whole and 0 < len(self.complete) == self.count()

    def count(self) -> int:
        """Return the number of rows."""
        return len(self.complete) + len(self.release) + len(self.retry) + len(self.bury)

    @property
    def rows(self) -> list[Row]:
        """All rows of the settlement."""
        return [*self.complete, *self.release, *(each.row for each in (*self.retry, *self.bury))]

    def part(self, rows: Iterable[Row]) -> "Settlement":
        """Return the settlement of some of the rows."""
        kept = set(map(id, rows))
        return Settlement(
            self.at,
            complete=[row for row in self.complete if id(row) in kept],
            release=[row for row in self.release if id(row) in kept],
            retry=[each for each in self.retry if id(each.row) in kept],
            bury=[each for each in self.bury if id(each.row) in kept],
        )

    def halves(self) -> "list[Settlement]":
        """Return two settlements that together settle the same rows, in the same order."""
        rows, middle = self.rows, self.count() // 2
        return [self.part(rows[:middle]), self.part(rows[middle:])]

    async def write(self, tx: Transaction, lease: Lease) -> dict[str, int]:
        """Settle the rows one by one. Return the number of rows changed, by outcome."""
        if len(self.complete) < self.count():
            await lease.lock(tx, self.rows)
        return {
            "fired": await lease.complete(tx, self.complete, self.at),
            "released": await lease.release(tx, self.release),
            "retried": await lease.retry(tx, self.retry),
            "buried": await lease.bury(tx, self.bury),
        }


class Settler:
    """Writes settlements to the database, with the bytes to charge for what was published, and counts them."""

    def __init__(
        self, database: Database, lease: Lease, allowances: EventAllowances, clock: Clock, metrics: MetricsPort
    ) -> None:
        self._database = database
        self._lease = lease
        self._allowances = allowances
        self._clock = clock
        self._metrics = metrics
        self._left: list[Settlement] = []

    @property
    def waits(self) -> bool:
        """Whether `settle_left` must be called soon, because another session had locked some rows."""
        return bool(self._left)

    async def settle_left(self) -> None:
        """Settle the rows that an outage, a lock or a cancellation has left. Raises `DatabaseUnavailableError`."""
        left, self._left = self._left, []
        await self.settle_all(left)

    async def settle_all(self, settlements: Iterable[Settlement]) -> None:
        """Settle rows of several claims. If that fails or is cancelled, `settle_left` settles the rest."""
        rest = list(settlements)
        try:
            while rest:
                await self.settle(rest.pop(0))
        finally:
            self._left += rest

    async def settle(self, settlement: Settlement) -> None:
        """Settle rows. If that fails, settle them in halves, so that one bad row does not hold the others.

        A row that cannot be settled alone keeps its lease until the lease expires. Rows that another session has locked
        wait for `settle_left`. Raises `DatabaseUnavailableError`, or the error that every row met. After that, and if
        this is cancelled, `settle_left` settles the rest.
        """
        parts = [settlement]
        settled, failed = 0, 0
        try:
            while parts:
                part = parts.pop()
                try:
                    parts += await self._write(part)
                except DatabaseBlockedError as error:
                    self._leave_locked(part, str(error))
                except (DatabaseUnavailableError, asyncio.CancelledError):
                    parts += [] if part.is_written else [part]
                    raise
                except Exception as error:
                    if part.count() > 1:
                        about = {"count": part.count()}
                        log.warning("settling failed, settling in halves", exc_info=error, extra=about)
                        parts += reversed(part.halves())
                        continue
                    log.exception("row cannot be settled", extra={"table": self._lease.table.name})
                    failed += 1
                    if failed >= _FUTILE and not settled:
                        raise
                else:
                    settled += part.count()
        finally:
            self._left += parts

    async def settle_and(self, claims: Sequence[Settlement], work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Settle whole claims whose rows are all complete, and do `work`, in one transaction. Return its result.

        One transaction syncs to the disk once. Measured on SQLite, this saves 1.5 µs per row in claims of 1,000. If it
        fails, the claims are settled first, and `work` has a transaction of its own. After an outage or a cancellation,
        `settle_left` settles them.
        """

        async def write(tx: Transaction) -> tuple[list[int], _T]:
            counts = [await self._lease.complete_claim(tx, each.complete, each.at, shared=False) for each in claims]
            return counts, await work(tx)

        try:
            counts, result = await self._run(claims, write)
        except (DatabaseUnavailableError, asyncio.CancelledError):
            self._left += (each for each in claims if not each.is_written)
            raise
        except Exception as error:
            if not claims:
                raise
            log.warning("settling with the next claim failed, settling alone", exc_info=error)
            await self.settle_all(claims)
            return await run_at_once(self._database, work)
        for each, count in zip(claims, counts, strict=True):
            self._record(each, {"fired": count}, lost=each.count() - count)
        return result

    def count_lost(self, count: int) -> None:
        """Count rows whose lease was lost."""
        self._metrics.leases_lost(count)
        log.warning("leases expired or rows changed before they were settled", extra={"count": count})

    async def _run(self, settlements: Sequence[Settlement], work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Run `work`, which settles rows, and charge what was published."""

        def record() -> None:
            for each in settlements:
                each.is_written = True

        with self._allowances.charging(self._clock.now()) as charge:

            async def settle(tx: Transaction) -> _T:
                tx.on_commit(record)
                result = await work(tx)
                await charge(tx)
                return result

            return await run_at_once(self._database, settle)

    async def _write(self, part: Settlement) -> list[Settlement]:
        """Settle rows. Return what is left to settle: a claim of which others have locked some rows.

        If others use the database, nothing waits for a lock: what is locked waits for `settle_left`.
        """
        shared = not self._database.exclusive
        if part.all_completed:
            complete = partial(self._lease.complete_claim, rows=part.complete, at=part.at, shared=shared)
            fired = await self._run([part], complete)
            missing = part.count() - fired
            self._record(part, {"fired": fired}, lost=0 if shared else missing)
            return [Settlement(part.at, complete=part.complete, completed=fired)] if shared and missing else []
        changed, locked = await self._run([part], partial(self._write_free if shared else self._write_all, part))
        if locked:
            self._leave_locked(part.part(locked), "locked by another session")
        self._record(part, changed, lost=part.count() - part.completed - sum(changed.values()) - len(locked))
        return []

    async def _write_all(self, part: Settlement, tx: Transaction) -> tuple[Mapping[str, int], Sequence[Row]]:
        return await part.write(tx, self._lease), []

    async def _write_free(self, part: Settlement, tx: Transaction) -> tuple[Mapping[str, int], Sequence[Row]]:
        """Settle the rows that no other session has locked. Return what changed, and the locked rows."""
        free, locked = await self._lease.find_free(tx, part.rows)
        return await part.part(free).write(tx, self._lease), locked

    def _leave_locked(self, part: Settlement, reason: str) -> None:
        self._left.append(part)
        about = {"table": self._lease.table.name, "count": part.count(), "reason": reason}
        log.warning("settling blocked; settling the locked rows later", extra=about)

    def _record(self, part: Settlement, changed: Mapping[str, int], *, lost: int) -> None:
        table = self._lease.table
        fired = part.complete[: changed.get("fired", 0)]
        expired = table.count_expired(fired, part.at)
        for outcome, count in {**changed, "fired": len(fired) - expired, "expired": expired}.items():
            if count:
                self._metrics.settled(table.name, outcome, count)
        if lost:
            self.count_lost(lost)
        if buried := changed.get("buried"):
            self._metrics.buried(table.name, buried)
            reason = part.bury[0].error
            log.error(
                "rows given up: they fire only if they are retried",
                extra={"table": table.name, "count": buried, "reason": reason},
            )
        now = self._clock.now()
        for due_at, count in Counter(map(itemgetter(table.oldest_first), fired)).items():
            self._metrics.fired_late(table.name, (now - due_at) / 1000, count)
