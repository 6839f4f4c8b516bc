"""Settles the rows of claims, by the results of publishing."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar

from timer_service.core.due.isolate import isolate
from timer_service.core.due.lease import Failure, Lease
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import run_at_once
from timer_service.core.values.errors import DatabaseUnavailableError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_FUTILE = 5


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
    is_written: bool = False
    """Whether a transaction has written it. That may also be so if its task was cancelled."""

    @property
    def all_completed(self) -> bool:
        """Whether all rows of the claim are complete. One statement can then settle them."""
        return self.whole and bool(self.complete) and not (self.release or self.retry or self.bury)

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

    async def write(self, tx: Transaction, lease: Lease) -> dict[str, int]:
        """Settle locked rows one by one. Return the number of rows changed, by outcome."""
        return {
            "fired": await lease.complete(tx, self.complete, self.at),
            "released": await lease.release(tx, self.release),
            "retried": await lease.retry(tx, self.retry),
            "buried": await lease.bury(tx, self.bury),
        }


class Settler:
    """Writes settlements to the database, and counts them."""

    def __init__(self, database: Database, lease: Lease, clock: Clock, metrics: MetricsPort) -> None:
        self._database = database
        self._lease = lease
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
        await self.settle(left)

    async def settle(self, settlements: Iterable[Settlement]) -> None:
        """Settle rows of several claims. If that fails or is cancelled, `settle_left` settles the rest."""
        rest = list(settlements)
        try:
            while rest:
                await self._settle(rest.pop(0))
        finally:
            self._left += rest

    async def _settle(self, settlement: Settlement) -> None:
        """Settle rows. If that fails, settle them in halves, so that one bad row does not hold the others.

        A row that cannot be settled alone is logged, and keeps its lease until that expires. The other rows that are
        not settled are left for `settle_left`: those that another session has locked, and the rest after two seconds,
        an outage or a cancellation. If five rows failed alone and none was settled, the cause is probably not in the
        rows: all are left, and the error of a row is raised. An outage is raised too.
        """
        rows = settlement.rows
        unsettled = set(map(id, rows))

        async def write(some: Sequence[Row]) -> None:
            """Settle some of the rows in a transaction."""
            part = settlement if len(some) == len(rows) else settlement.part(some)
            try:
                await self._write(part)
            finally:
                if part.is_written:  # also if the task was cancelled just after the commit
                    unsettled.difference_update(map(id, some))

        try:
            result = await isolate(rows, write)
            if len(result.broken) >= _FUTILE and not result.done:
                raise result.broken[0].error
            for row, error in result.broken:
                unsettled.discard(id(row))
                log.error("row cannot be settled", exc_info=error, extra={"table": self._lease.table.name})
        finally:
            if unsettled:
                self._leave(settlement.part(row for row in rows if id(row) in unsettled))

    async def settle_and(self, claims: Sequence[Settlement], work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Settle whole claims whose rows are all complete, and do `work`, in one transaction. Return its result.

        One transaction syncs to the disk once. If it fails, the claims are settled first, and `work` has a transaction
        of its own. After an outage or a cancellation, `settle_left` settles them.
        """

        async def write(tx: Transaction) -> tuple[list[int], _T]:
            """Return how many rows of each claim changed, and the result of `work`."""
            tx.on_commit(partial(_mark_written, claims))
            counts = [await self._lease.complete_claim(tx, each.complete, each.at, shared=False) for each in claims]
            return counts, await work(tx)

        try:
            counts, result = await run_at_once(self._database, write)
        except (DatabaseUnavailableError, asyncio.CancelledError):
            self._left += (each for each in claims if not each.is_written)
            raise
        except Exception as error:
            if not claims:
                raise
            log.warning("settling with the next claim failed, settling alone", exc_info=error)
            await self.settle(claims)
            return await run_at_once(self._database, work)
        for each, count in zip(claims, counts, strict=True):
            self._record(each, {"fired": count}, lost=len(each.complete) - count)
        return result

    async def _write(self, part: Settlement) -> None:
        """Settle rows. If others use the database, nothing waits for a lock: what is locked is left."""

        async def work(tx: Transaction) -> tuple[Mapping[str, int], Sequence[Row]]:
            tx.on_commit(partial(_mark_written, [part]))
            return await self._write_in(tx, part)

        changed, locked = await run_at_once(self._database, work)
        if locked:
            self._leave(part.part(locked))
        self._record(part, changed, lost=len(part.rows) - sum(changed.values()) - len(locked))

    async def _write_in(self, tx: Transaction, part: Settlement) -> tuple[Mapping[str, int], Sequence[Row]]:
        """Settle rows. Return how many changed, by outcome, and the rows that another session has locked."""
        shared, fired = not self._database.exclusive, 0
        if part.all_completed:
            fired = await self._lease.complete_claim(tx, part.complete, part.at, shared=shared)
            if fired == len(part.complete) or not shared:
                return {"fired": fired}, []
            # The other rows are locked, or their leases are lost.
        free, locked = await self._lease.find_free(tx, part.rows) if shared else (part.rows, [])
        changed = await part.part(free).write(tx, self._lease)
        return {**changed, "fired": fired + changed["fired"]}, locked

    def _leave(self, part: Settlement) -> None:
        """Keep a settlement for `settle_left`."""
        self._left.append(part)
        log.warning("rows are settled later", extra={"table": self._lease.table.name, "count": len(part.rows)})

    def _record(self, part: Settlement, changed: Mapping[str, int], *, lost: int) -> None:
        """Count and log settled rows, by outcome, and the leases that were lost."""
        table = self._lease.table
        fired = part.complete[: changed.get("fired", 0)]  # the same number of rows; which ones were lost is not known
        expired = table.count_expired(fired, part.at)
        for outcome, count in {**changed, "fired": len(fired) - expired, "expired": expired}.items():
            if count:
                self._metrics.settled(table.name, outcome, count)
        if lost:
            self._metrics.leases_lost(lost)
            log.warning("leases expired or rows changed before they were settled", extra={"count": lost})
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


def _mark_written(settlements: Iterable[Settlement]) -> None:
    """Record that the transaction of settlements was committed."""
    for each in settlements:
        each.is_written = True
