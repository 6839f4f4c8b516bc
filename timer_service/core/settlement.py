"""Settles the rows of claims, by the results of publishing."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from timer_service.core.clock import Clock
from timer_service.core.database import Database, Row, Transaction
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.lease import Failure, Lease
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.transactions import in_transaction

log = logging.getLogger(__name__)

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
            await lease.lock(tx, [*self.complete, *self.release, *(each.row for each in (*self.retry, *self.bury))])
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

    async def settle_left(self) -> None:
        """Settle the rows that an outage of the database left unsettled. Raises `DatabaseUnavailableError`."""
        while self._left:
            await self.settle(self._left.pop())

    async def settle(self, settlement: Settlement) -> None:
        """Settle rows. If that fails, settle them in halves, so that one bad row does not hold the others.

        A row that cannot be settled alone keeps its lease until the lease expires. Raises `DatabaseUnavailableError`,
        or the error that every row met. `settle_left` then settles the rest.
        """
        parts = [settlement]
        settled, failed = 0, 0
        while parts:
            part = parts.pop()
            try:
                changed = await self._write(part)
            except DatabaseUnavailableError:
                self._left += [part, *parts]
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
                self._record(part, changed)

    def count_lost(self, count: int) -> None:
        """Count rows whose lease was lost."""
        self._metrics.leases_lost(count)
        log.warning("leases expired or rows changed before they were settled", extra={"count": count})

    async def _write(self, part: Settlement) -> dict[str, int]:
        """Settle rows in a transaction. Return the number of rows changed, by outcome."""
        if not part.all_completed:
            return await in_transaction(self._database, partial(part.write, lease=self._lease))
        shared = not self._database.exclusive
        complete = partial(self._lease.complete_claim, rows=part.complete, at=part.at, shared=shared)
        fired = await in_transaction(self._database, complete)
        if shared and fired < part.count():  # commands held locks on the others
            rest = partial(self._lease.complete, rows=part.complete, at=part.at)
            fired += await in_transaction(self._database, rest)
        return {"fired": fired}

    def _record(self, part: Settlement, changed: Mapping[str, int]) -> None:
        table = self._lease.table
        for outcome, count in changed.items():
            if count:
                self._metrics.settled(table.name, outcome, count)
        if lost := part.count() - sum(changed.values()):
            self.count_lost(lost)
        if buried := changed.get("buried"):
            self._metrics.buried(table.name, buried)
            reason = part.bury[0].error
            log.error(
                "rows given up: they fire only if they are retried",
                extra={"table": table.name, "count": buried, "reason": reason},
            )
        now = self._clock.now()
        for row in part.complete:
            self._metrics.fired_late(table.name, (now - row[table.oldest_first]) / 1000)
