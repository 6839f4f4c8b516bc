"""The relay: claim -> publish -> settle, with no transaction open while the broker is asked."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from timer_service.core.backoff import Backoff
from timer_service.core.broker import ABSOLVED, Broker, PublishResult, PublishStatus
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
"""Turns a claimed row into its message, fired at the given instant. May raise: then only that row fails."""

_BATCHES_PER_TICK = 8
_BATCHES_IN_FLIGHT = 2
_PAUSE_MS = 250
"""How long to leave an unavailable broker alone. Short: it bounds how late timers are once it is back."""
_OTHERS_CLAIM_MS = 5
"""How long to leave rows alone that another instance is claiming: it takes that long, and asking again hinders it."""


@dataclass(slots=True)
class _Settlement:
    """What is to be done with the rows of one claim, fired at an instant."""

    at: int
    complete: list[Row] = field(default_factory=list)
    release: list[Row] = field(default_factory=list)
    retry: list[Failure] = field(default_factory=list)
    bury: list[Failure] = field(default_factory=list)

    def count(self) -> int:
        return len(self.complete) + len(self.release) + len(self.retry) + len(self.bury)


class Relay:
    """Publishes the events that available rows of one table stand for."""

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
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._resume_at = 0
        self._claimed_nothing_at: int | None = None
        self._unsettled: list[_Settlement] = []

    async def tick(self, now: int) -> Pass:
        """Fire rows available at `now`, a bounded number of batches; count the rows that were claimed.

        Neighbouring batches overlap: while one is with the broker, another is claimed or settled. Claims stop while the
        broker is away, so that an outage costs no attempts. What an outage of the database left unsettled goes first:
        while its leases last, it need not be published again.
        """
        while self._unsettled:
            await self._settle(self._unsettled.pop())
        claimed = 0
        flights: set[asyncio.Task[None]] = set()
        try:
            for _ in range(_BATCHES_PER_TICK):
                if not self._may_claim(now):
                    break
                rows = await self._claim(now)
                claimed += len(rows)
                if rows:
                    flights.add(asyncio.create_task(self._fire(rows)))
                if len(rows) < self._batch_size:
                    break
                if len(flights) == _BATCHES_IN_FLIGHT:
                    landed, flights = await asyncio.wait(flights, return_when=asyncio.FIRST_COMPLETED)
                    _raise_first(landed)
        finally:
            if flights:
                await asyncio.wait(flights)
        _raise_first(flights)
        self._claimed_nothing_at = None if claimed else now
        return Pass(claimed, await self._next_at())

    async def _next_at(self) -> int | None:
        at = await self._lease.next_available(self._database.reader)
        if at is None:
            return None
        if self._claimed_nothing_at is not None and at <= self._claimed_nothing_at:
            at = self._claimed_nothing_at + _OTHERS_CLAIM_MS
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
        verdicts = _Settlement(self._clock.now())
        messages = self._encode_each(rows, verdicts)
        if messages:
            started = time.perf_counter()
            results = await self._broker.publish(list(messages.values()))
            self._metrics.published(time.perf_counter() - started)
            self._judge([rows[index] for index in messages], results, verdicts)
        await self._settle(verdicts)

    def _encode_each(self, rows: Sequence[Row], verdicts: _Settlement) -> dict[int, Message]:
        messages = {}
        for index, row in enumerate(rows):
            if row["attempt"] > self._max_attempts:  # it ran out of attempts by killing the process each time
                verdicts.bury.append(Failure(row, "gave up: claimed and never settled", verdicts.at))
                continue
            try:
                messages[index] = self._encode(row, verdicts.at)
            except Exception as error:
                log.exception("row can't be encoded", extra={"table": self._lease.table.name})
                self._fail(row, f"can't be encoded: {error!r}", verdicts)
        return messages

    def _judge(self, rows: Sequence[Row], results: Sequence[PublishResult], verdicts: _Settlement) -> None:
        """Sort rows by how their publishing ended: done, not their fault (release), their fault (retry or bury)."""
        for row, result in zip(rows, results, strict=True):
            if result.status is PublishStatus.PUBLISHED:
                verdicts.complete.append(row)
            elif result.status in ABSOLVED:
                verdicts.release.append(row)
            else:
                self._fail(row, result.reason, verdicts)
        failures = [result for result in results if result.status is not PublishStatus.PUBLISHED]
        for status in {result.status for result in failures}:
            reasons = [result.reason for result in failures if result.status is status]
            self._metrics.publish_failed(status, len(reasons))
            log.warning("publish failed", extra={"status": status, "count": len(reasons), "reason": reasons[0]})
        if verdicts.release:
            self._pause()

    def _fail(self, row: Row, error: str, verdicts: _Settlement) -> None:
        attempt: int = row["attempt"]
        delay = self._backoff.delay(attempt, self._rng)
        failure = Failure(row, error, self._clock.now() + delay // timedelta(milliseconds=1))
        (verdicts.retry if attempt < self._max_attempts else verdicts.bury).append(failure)

    async def _settle(self, verdicts: _Settlement) -> None:
        now = self._clock.now()
        try:
            changed = await in_transaction(self._database, lambda tx: self._write(tx, verdicts))
        except DatabaseUnavailableError:
            self._unsettled.append(verdicts)
            raise
        for outcome, count in changed.items():
            if count:
                self._metrics.settled(self._lease.table.name, outcome, count)
        if lost := verdicts.count() - sum(changed.values()):
            self._metrics.leases_lost(lost)
            log.warning("leases lost before they were settled", extra={"count": lost})
        if changed["buried"]:
            self._metrics.buried(self._lease.table.name, changed["buried"])
        for row in verdicts.complete:
            self._metrics.fired_late(self._lease.table.name, (now - row[self._lease.table.oldest_first]) / 1000)

    async def _write(self, tx: Transaction, verdicts: _Settlement) -> dict[str, int]:
        """Settle, and return how many rows changed by outcome."""
        whole_claim = len(verdicts.complete) == verdicts.count()
        complete = self._lease.complete_claim if whole_claim else self._lease.complete
        return {
            "fired": await complete(tx, verdicts.complete, verdicts.at),
            "released": await self._lease.release(tx, verdicts.release),
            "retried": await self._lease.retry(tx, verdicts.retry),
            "buried": await self._lease.bury(tx, verdicts.bury),
        }


def _raise_first(flights: set[asyncio.Task[None]]) -> None:
    for error in [flight.exception() for flight in flights]:
        if error is not None:
            raise error
