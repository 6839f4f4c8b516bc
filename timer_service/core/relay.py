"""The relay: claims rows, publishes their events, settles the rows. No transaction is open while it publishes."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from timer_service.core.backoff import Backoff
from timer_service.core.broker import TRANSIENT, Broker, PublishResult, PublishStatus
from timer_service.core.clock import Clock
from timer_service.core.database import Database, Row, Transaction
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.lease import Failure, Lease
from timer_service.core.loop import Pass
from timer_service.core.message import Message
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.transactions import in_transaction

log = logging.getLogger(__name__)

Encode = Callable[[Row, int], Message]
"""Returns the message of a claimed row that is fired at an instant. If it raises, only that row fails."""

_BATCHES_PER_TICK = 8
_OVERLAPPING_BATCHES = 2
_PAUSE_MS = 250
"""How long to wait while the broker is unavailable. Timers may be late by this much when the broker is back."""
_LOCKED_ROWS_PAUSE_MS = 5
"""How long to wait for rows that another instance is claiming. A claim takes about this long,
and polling more often slows it down."""


@dataclass(slots=True)
class _Settlement:
    """How to settle the rows of one claim, which were fired at an instant."""

    at: int
    complete: list[Row] = field(default_factory=list)
    release: list[Row] = field(default_factory=list)
    retry: list[Failure] = field(default_factory=list)
    bury: list[Failure] = field(default_factory=list)

    def count(self) -> int:
        return len(self.complete) + len(self.release) + len(self.retry) + len(self.bury)


class Relay:
    """A worker that publishes the events of the available rows of one table."""

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        lease: Lease,
        encode: Encode,
        clock: Clock,
        metrics: MetricsPort,
        batch_size: int,
        max_attempts: int,
        backoff: Backoff = Backoff(),
        rng: random.Random | None = None,
    ) -> None:
        self._database = database
        self._broker = broker
        self._lease = lease
        self._encode = encode
        self._clock = clock
        self._metrics = metrics
        self._batch_size = batch_size
        self._max_attempts = max_attempts
        self._backoff = backoff
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._resume_at = 0
        self._claimed_nothing_at: int | None = None
        self._unsettled: list[_Settlement] = []

    async def tick(self, now: int) -> Pass:
        """Fire rows that are available at `now`, in a limited number of batches. Return how many rows were claimed.

        Two batches overlap: while one is being published, the next is claimed or settled. The relay claims nothing
        while the broker is unavailable, so an outage costs no attempts.

        Claims that an outage of the database left unsettled are settled first. While their leases last, their events
        need not be published again.
        """
        while self._unsettled:
            await self._settle(self._unsettled.pop())
        claimed = 0
        publishing: set[asyncio.Task[None]] = set()
        try:
            for _ in range(_BATCHES_PER_TICK):
                if not self._may_claim(now):
                    break
                rows = await self._claim(now)
                claimed += len(rows)
                if rows:
                    publishing.add(asyncio.create_task(self._fire(rows)))
                if len(rows) < self._batch_size:
                    break
                if len(publishing) == _OVERLAPPING_BATCHES:
                    finished, publishing = await asyncio.wait(publishing, return_when=asyncio.FIRST_COMPLETED)
                    _raise_first(finished)
        finally:
            if publishing:
                await asyncio.wait(publishing)
        _raise_first(publishing)
        self._claimed_nothing_at = None if claimed else now
        return Pass(claimed, await self._next_at())

    async def _next_at(self) -> int | None:
        at = await self._lease.next_available(self._database.reader)
        if at is None:
            return None
        if self._claimed_nothing_at is not None and at <= self._claimed_nothing_at:
            at = self._claimed_nothing_at + _LOCKED_ROWS_PAUSE_MS
        return max(at, self._resume_at)

    def _may_claim(self, now: int) -> bool:
        if not self._broker.health.usable:
            self._pause()
        return now >= self._resume_at

    def _pause(self) -> None:
        self._resume_at = self._clock.now() + _PAUSE_MS

    async def _claim(self, now: int) -> list[Row]:
        rows = await in_transaction(self._database, lambda tx: self._lease.claim(tx, now, self._batch_size))
        self._metrics.claimed(len(rows))
        return rows

    async def _fire(self, rows: Sequence[Row]) -> None:
        settlement = _Settlement(self._clock.now())
        messages = self._encode_each(rows, settlement)
        if messages:
            started = time.perf_counter()
            results = await self._broker.publish(list(messages.values()))
            self._metrics.published(time.perf_counter() - started)
            self._sort_results([rows[index] for index in messages], results, settlement)
        await self._settle(settlement)

    def _encode_each(self, rows: Sequence[Row], settlement: _Settlement) -> dict[int, Message]:
        messages = {}
        for index, row in enumerate(rows):
            if row["attempt"] > self._max_attempts:  # the process died at each attempt
                settlement.bury.append(Failure(row, "gave up: claimed and never settled", settlement.at))
                continue
            try:
                messages[index] = self._encode(row, settlement.at)
            except Exception as error:
                log.exception("row cannot be encoded", extra={"table": self._lease.table.name})
                self._fail(row, f"cannot be encoded: {error!r}", settlement)
        return messages

    def _sort_results(self, rows: Sequence[Row], results: Sequence[PublishResult], settlement: _Settlement) -> None:
        """Decide by the result of each row: published (complete), transient (release), refused (retry or bury)."""
        for row, result in zip(rows, results, strict=True):
            if result.status is PublishStatus.PUBLISHED:
                settlement.complete.append(row)
            elif result.status in TRANSIENT:
                settlement.release.append(row)
            else:
                self._fail(row, result.reason, settlement)
        failures = [result for result in results if result.status is not PublishStatus.PUBLISHED]
        for status in {result.status for result in failures}:
            reasons = [result.reason for result in failures if result.status is status]
            self._metrics.publish_failed(status, len(reasons))
            log.warning("messages not published", extra={"status": status, "count": len(reasons), "reason": reasons[0]})
        if settlement.release:
            self._pause()

    def _fail(self, row: Row, error: str, settlement: _Settlement) -> None:
        attempt: int = row["attempt"]
        delay = self._backoff.delay(attempt, self._rng)
        failure = Failure(row, error, self._clock.now() + delay // timedelta(milliseconds=1))
        (settlement.retry if attempt < self._max_attempts else settlement.bury).append(failure)

    async def _settle(self, settlement: _Settlement) -> None:
        now = self._clock.now()
        try:
            changed = await in_transaction(self._database, lambda tx: self._write(tx, settlement))
        except DatabaseUnavailableError:
            self._unsettled.append(settlement)
            raise
        for outcome, count in changed.items():
            if count:
                self._metrics.settled(self._lease.table.name, outcome, count)
        if lost := settlement.count() - sum(changed.values()):
            self._metrics.leases_lost(lost)
            log.warning("leases expired or rows changed before they were settled", extra={"count": lost})
        if changed["buried"]:
            self._metrics.buried(self._lease.table.name, changed["buried"])
        for row in settlement.complete:
            self._metrics.fired_late(self._lease.table.name, (now - row[self._lease.table.oldest_first]) / 1000)

    async def _write(self, tx: Transaction, settlement: _Settlement) -> dict[str, int]:
        """Settle the rows of a claim; return the number of rows changed, by outcome."""
        whole_claim = len(settlement.complete) == settlement.count()
        complete = self._lease.complete_claim if whole_claim else self._lease.complete
        return {
            "fired": await complete(tx, settlement.complete, settlement.at),
            "released": await self._lease.release(tx, settlement.release),
            "retried": await self._lease.retry(tx, settlement.retry),
            "buried": await self._lease.bury(tx, settlement.bury),
        }


def _raise_first(publishing: set[asyncio.Task[None]]) -> None:
    for error in [task.exception() for task in publishing]:
        if error is not None:
            raise error
