"""The worker that processes due firings: signal fired, follow-up task and event, in one transaction."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from timer_service.core import outbox
from timer_service.core.backoff import Backoff
from timer_service.core.database import Row, Transaction
from timer_service.core.errors import ConflictError, DatabaseUnavailableError
from timer_service.core.lease import Failure, Lease
from timer_service.core.loop import Pass
from timer_service.core.slice import WorkerParts
from timer_service.core.transactions import in_transaction
from timer_service.signals import firing_store, store
from timer_service.signals.events import failed_event, fired_event
from timer_service.signals.firing_store import FIRINGS, defined_of, position_of, signal_of
from timer_service.signals.firings import refusal
from timer_service.signals.signals import fire, give_up

log = logging.getLogger(__name__)

_OTHERS_CLAIM_MS = 5
"""How long to leave firings alone that another instance is claiming."""


@dataclass(slots=True)
class _Fired:
    """What became of claimed firings."""

    fired: list[Row] = field(default_factory=list)
    refused: list[Failure] = field(default_factory=list)


class FiringWorker:
    """A worker whose ticks process one batch of firings each."""

    def __init__(self, parts: WorkerParts) -> None:
        self._database = parts.database
        self._lease = Lease(FIRINGS, parts.visibility_timeout)
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._batch_size = parts.batch_size
        self._max_attempts = parts.max_attempts
        self._wake = partial(parts.wake, "outbox")
        self._backoff = Backoff()
        self._rng = parts.rng
        self._left: list[Row] = []
        """Claimed, and not processed because the database went away: their leases may last until it is back."""
        self._claimed_nothing_at: int | None = None

    async def tick(self, now: int) -> Pass:
        """Process up to one batch of firings available at `now`; count those that were claimed."""
        rows, self._left = self._left or await self._claim(now), []
        self._claimed_nothing_at = None if rows else now
        last = self._max_attempts + 1
        try:
            await self._process([row for row in rows if row["attempt"] < last])
            for row in rows:
                if row["attempt"] > last:
                    await self._give_up(Failure(row, "gave up: claimed and never settled", now))
            await self._process_alone([row for row in rows if row["attempt"] == last])
        except DatabaseUnavailableError:
            self._left = rows
            raise
        return Pass(len(rows), await self._next_at())

    async def _next_at(self) -> int | None:
        at = await self._lease.next_available(self._database.reader)
        if at is not None and self._claimed_nothing_at is not None and at <= self._claimed_nothing_at:
            return self._claimed_nothing_at + _OTHERS_CLAIM_MS
        return at

    async def _claim(self, now: int) -> list[Row]:
        rows = await in_transaction(self._database, lambda tx: self._lease.claim(tx, now, self._batch_size))
        self._metrics.claimed(len(rows))
        return rows

    async def _process_alone(self, rows: Sequence[Row]) -> None:
        """Process rows one by one that were claimed and never settled in all their attempts.

        One of them may have killed the process each time. The attempt is counted for the row that is tried, not for
        the others, so that only a row that kills the process alone is given up.
        """
        if rows:
            await in_transaction(self._database, lambda tx: firing_store.recount(tx, rows, self._max_attempts))
        for row in rows:
            tried = partial(firing_store.recount, rows=[row], attempt=self._max_attempts + 1)
            await in_transaction(self._database, tried)
            await self._process([row])

    async def _process(self, rows: Sequence[Row]) -> None:
        """Process rows together; halve a batch that fails until the row is alone that is to blame."""
        if not rows:
            return
        at = self._clock.now()
        try:
            done = await in_transaction(self._database, lambda tx: self._fire(tx, rows, at))
        except DatabaseUnavailableError:
            raise
        except Exception as error:
            if (half := len(rows) // 2) > 0:
                log.warning("firings failed, processing them in halves", exc_info=error, extra={"count": len(rows)})
                await self._process(rows[:half])
                await self._process(rows[half:])
                return
            log.exception("firing failed", extra={"firing_id": rows[0]["firing_id"]})
            await self._fail(rows[0], repr(error))
        else:
            self._tell(done, len(rows), at)

    async def _fire(self, tx: Transaction, rows: Sequence[Row], at: int) -> _Fired:
        """Fire what is still held and whose signal is still active; a lost lease leaves everything as it is."""
        before = await store.find_locked(tx, {signal_of(row) for row in rows})
        signals = dict(before)
        done = _Fired()
        for row in sorted(await firing_store.still_held(tx, rows), key=position_of):  # the oldest cause fires
            signal = signals.get(signal_of(row))
            reason = refusal(signal, defined_of(row), position_of(row))
            if signal is None or reason is not None:
                done.refused.append(Failure(row, reason or "", at))
                continue
            signals[signal.key] = fire(signal, position_of(row), at)
            done.fired.append(row)
        await store.save_signals(tx, before, signals)
        await firing_store.add_tasks(tx, done.fired, at)
        await outbox.add(tx, [fired_event(row, at) for row in done.fired], at)
        settled = await self._lease.complete(tx, done.fired, at) + await firing_store.fail(tx, done.refused, at)
        if settled != len(done.fired) + len(done.refused):
            raise ConflictError("leases were lost while they were being settled")
        return done

    async def _fail(self, row: Row, error: str) -> None:
        attempt: int = row["attempt"]
        delay = self._backoff.delay(attempt, self._rng)
        failure = Failure(row, error, self._clock.now() + delay // timedelta(milliseconds=1))
        if attempt >= self._max_attempts:
            await self._give_up(failure)
            return
        retried = await in_transaction(self._database, lambda tx: self._lease.retry(tx, [failure]))
        self._settled("retried", retried, lost=1 - retried)

    async def _give_up(self, failure: Failure) -> None:
        """Bury a firing: its signal is paused, and its tenant is told."""
        at = self._clock.now()
        buried = await in_transaction(self._database, lambda tx: self._bury(tx, failure, at))
        self._settled("buried", buried, lost=1 - buried)
        if buried:
            self._metrics.buried(FIRINGS.name, buried)
            self._wake(at)

    async def _bury(self, tx: Transaction, failure: Failure, at: int) -> int:
        before = await store.find_locked(tx, [signal_of(failure.row)])
        buried = await firing_store.fail(tx, [failure], at)
        if buried:
            cause = position_of(failure.row)
            await store.save_signals(
                tx, before, {key: give_up(signal, cause, failure.error, at) for key, signal in before.items()}
            )
            await outbox.add(tx, [failed_event(failure, at)], at)
        return buried

    def _tell(self, done: _Fired, claimed: int, at: int) -> None:
        self._settled("refused", len(done.refused), lost=claimed - len(done.fired) - len(done.refused))
        self._settled("fired", len(done.fired), lost=0)
        for row in done.fired:
            self._metrics.fired_late(FIRINGS.name, (at - row["due_at"]) / 1000)
        if done.fired:
            self._wake(at)

    def _settled(self, outcome: str, count: int, *, lost: int) -> None:
        if count:
            self._metrics.settled(FIRINGS.name, outcome, count)
        if lost:
            self._metrics.leases_lost(lost)
            log.warning("leases lost before they were settled", extra={"count": lost})
