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
        middle = self.count() // 2
        halves = [Settlement(self.at), Settlement(self.at)]
        seen = 0
        for name in ("complete", "release", "retry", "bury"):
            rows = getattr(self, name)
            here = max(0, middle - seen)
            setattr(halves[0], name, rows[:here])
            setattr(halves[1], name, rows[here:])
            seen += len(rows)
        return halves

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
        self._locked: list[Settlement] = []

    @property
    def waits(self) -> bool:
        """Whether `settle_left` must be called soon, because another session had locked some rows."""
        return bool(self._locked)

    async def settle_left(self) -> None:
        """Settle the rows that an outage, a lock or a cancellation has left. Raises `DatabaseUnavailableError`."""
        while self._left:
            await self.settle(self._left.pop())
        locked, self._locked = self._locked, []
        while locked:
            part = locked.pop()
            try:
                self._record(part, *await self._settle_free(part))
            except DatabaseUnavailableError:
                self._left += [part, *locked]
                raise
            except asyncio.CancelledError:
                self._left += locked
                raise

    async def settle(self, settlement: Settlement) -> None:
        """Settle rows. If that fails, settle them in halves, so that one bad row does not hold the others.

        A row that cannot be settled alone keeps its lease until the lease expires. Rows that another session has locked
        wait for `settle_left`. Raises `DatabaseUnavailableError`, or the error that every row met. After that, and if
        this is cancelled, `settle_left` settles the rest.
        """
        parts = [settlement]
        settled, failed = 0, 0
        while parts:
            part = parts.pop()
            try:
                changed, waiting = await self._write(part)
            except DatabaseUnavailableError:
                self._left += [part, *parts]
                raise
            except asyncio.CancelledError:
                self._left += parts
                raise
            except Exception as error:
                if part.count() > 1:
                    log.warning("settling failed, settling in halves", exc_info=error, extra={"count": part.count()})
                    parts += reversed(part.halves())
                    continue
                log.exception("row cannot be settled", extra={"table": self._lease.table.name})
                failed += 1
                if failed >= _FUTILE and not settled:
                    self._left += parts
                    raise
            else:
                settled += part.count()
                self._record(part, changed, waiting)

    async def settle_all(self, settlements: Iterable[Settlement]) -> None:
        """Settle rows of several claims. If that fails or is cancelled, `settle_left` settles the rest."""
        rest = list(settlements)
        try:
            while rest:
                await self.settle(rest.pop(0))
        finally:
            self._left += rest

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
        except DatabaseUnavailableError:
            self._left += claims
            raise
        except Exception as error:
            if not claims:
                raise
            log.warning("settling with the next claim failed, settling alone", exc_info=error)
            await self.settle_all(claims)
            return await run_at_once(self._database, work)
        for each, count in zip(claims, counts, strict=True):
            self._record(each, {"fired": count}, 0)
        return result

    def count_lost(self, count: int) -> None:
        """Count rows whose lease was lost."""
        self._metrics.leases_lost(count)
        log.warning("leases expired or rows changed before they were settled", extra={"count": count})

    async def _run(self, settlements: Sequence[Settlement], work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Run `work`, which settles rows. If it is cancelled before the commit, `settle_left` settles them."""
        unsettled = list(settlements)
        try:
            with self._allowances.charging(self._clock.now()) as charge:

                async def settle(tx: Transaction) -> _T:
                    tx.on_commit(unsettled.clear)
                    result = await work(tx)
                    await charge(tx)
                    return result

                return await run_at_once(self._database, settle)
        except asyncio.CancelledError:
            self._left += unsettled
            raise

    async def _write(self, part: Settlement) -> tuple[dict[str, int], int]:
        """Settle rows. Return the number of rows changed, by outcome, and the number of rows that wait for a lock."""
        if part.all_completed:
            return await self._write_claim(part)
        try:
            return await self._run([part], partial(part.write, lease=self._lease)), 0
        except DatabaseBlockedError as error:
            self._log_locked(part, error)
            return await self._settle_free(part)

    async def _write_claim(self, part: Settlement) -> tuple[dict[str, int], int]:
        shared = not self._database.exclusive
        complete = partial(self._lease.complete_claim, rows=part.complete, at=part.at, shared=shared)
        fired = await self._run([part], complete)
        if shared and fired < part.count():  # commands held locks on the others
            rest = partial(self._lease.complete, rows=part.complete, at=part.at)
            try:
                fired += await self._run([part], rest)
            except DatabaseBlockedError as error:
                self._log_locked(part, error)
                free, waiting = await self._settle_free(part)
                return {"fired": fired + free.get("fired", 0)}, waiting
        return {"fired": fired}, 0

    async def _settle_free(self, part: Settlement) -> tuple[dict[str, int], int]:
        """Settle the rows that no other session has locked. Keep the others for `settle_left`. Return as `_write`."""

        async def settle(tx: Transaction) -> tuple[dict[str, int], Settlement]:
            free, locked = await self._lease.find_free(tx, part.rows)
            return await part.part(free).write(tx, self._lease), part.part(locked)

        try:
            changed, rest = await self._run([part], settle)
        except DatabaseBlockedError:
            changed, rest = {}, part
        if rest.count():
            self._locked.append(rest)
        return changed, rest.count()

    def _log_locked(self, part: Settlement, error: Exception) -> None:
        about = {"table": self._lease.table.name, "count": part.count(), "reason": str(error)}
        log.warning("settling blocked; settling the locked rows later", extra=about)

    def _record(self, part: Settlement, changed: Mapping[str, int], waiting: int) -> None:
        table = self._lease.table
        fired = part.complete[: changed.get("fired", 0)]
        expired = table.count_expired(fired, part.at)
        for outcome, count in {**changed, "fired": len(fired) - expired, "expired": expired}.items():
            if count:
                self._metrics.settled(table.name, outcome, count)
        if lost := part.count() - sum(changed.values()) - waiting:
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
