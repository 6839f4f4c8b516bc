"""The worker that processes due firings.

One transaction marks the signal as fired, completes the firing, which is then the follow-up task, and writes the event.
"""

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.lease import DEATHS_ALONE, GIVEN_UP, Failure, Lease
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.values.delays import Backoff
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import ConflictError, DatabaseBlockedError, DatabaseUnavailableError
from timer_service.signals import firing_store, store
from timer_service.signals.events import failed_event, fired_event
from timer_service.signals.firing_store import FIRINGS, defined_of, position_of, signal_of
from timer_service.signals.firings import refusal
from timer_service.signals.signal import fire, give_up

log = logging.getLogger(__name__)

_RETRY_LOCKED_MS = 5
"""How long to wait before the next claim if another instance has locked all available firings."""

_Key = tuple[str, str]


@dataclass(slots=True)
class _Processed:
    """The result of processing claimed firings."""

    fired: list[Row] = field(default_factory=list)
    refused: list[Failure] = field(default_factory=list)
    left: list[Row] = field(default_factory=list)
    """The firings of signals that have too much data for the transaction."""
    lost: int = 0
    """How many firings another process has claimed."""


class FiringWorker:
    """A worker that processes one batch of firings in each tick."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._lease = Lease(FIRINGS, parts.visibility_timeout)
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._batch_size = parts.batch_size
        self._max_attempts = parts.max_attempts
        self._wake = partial(parts.wake, "outbox")
        self._backoff = Backoff()
        self._rng = parts.rng
        self._retries = Retries[_Key](FIRINGS.name)
        self._unprocessed: list[Row] = []
        """Claimed rows for which the last tick had no time or no database. The next one processes them first."""
        self._claimed_nothing_at: int | None = None

    async def tick(self, now: int) -> Pass:
        """Process at most one batch of the firings available at `now`. The pass counts the claimed firings."""
        if self._unprocessed:
            rows, self._unprocessed = self._unprocessed, []
        else:
            rows = await self._claim(now)
        self._claimed_nothing_at = None if rows else now
        await self._handle(rows)
        return Pass(len(rows), now if self._unprocessed else await self._next_at())

    async def _handle(self, rows: Sequence[Row]) -> None:
        """Process claimed rows. If the database is unavailable, the next tick processes them."""
        try:
            if rows and rows[0]["attempt"] > self._max_attempts + DEATHS_ALONE:
                await self._or_postpone(rows[0], self._give_up(Failure(rows[0], GIVEN_UP, self._clock.now())))
            else:
                await self._process(rows)
        except DatabaseUnavailableError:
            self._unprocessed = list(rows)
            raise

    async def _next_at(self) -> int | None:
        at = await self._lease.next_available(self._database.reader)
        if at is not None and self._claimed_nothing_at is not None and at <= self._claimed_nothing_at:
            return self._claimed_nothing_at + _RETRY_LOCKED_MS
        return at

    async def _claim(self, now: int) -> list[Row]:
        rows = await in_transaction(self._database, lambda tx: self._claim_in(tx, now))
        self._metrics.claimed(len(rows))
        return rows

    async def _claim_in(self, tx: Transaction, now: int) -> list[Row]:
        """Claim firings. If the process died at each attempt on one, together with others, it is claimed alone.

        So a firing is given up only if it alone ends the process, and not because of a crash loop with another cause.
        """
        rows = await self._lease.claim(tx, now, self._batch_size)
        if exhausted := [row for row in rows if row["attempt"] > self._max_attempts][:1]:
            await self._lease.release(tx, [row for row in rows if row not in exhausted])
        return exhausted or rows

    async def _process(self, rows: Sequence[Row]) -> None:
        """Process rows together. What fails alone is tried again later. What is left is processed by the next tick.

        If the clock was set back since a claim, they are processed at the instant of the claim: none is due later.
        """
        if not rows:
            return
        at = max(self._clock.now(), *map(self._lease.claimed_at, rows))
        left: list[Row] = []

        def record(done: _Processed) -> None:
            left.extend(done.left)
            self._record(done, at)

        isolated = await isolate_in_transactions(self._database, rows, partial(self._fire, at=at), record)
        tried = {id(row) for row in (*isolated.done, *(row for row, _ in isolated.failed))}
        self._unprocessed += [*left, *(row for row in rows if id(row) not in tried)]
        await self._postpone(isolated.blocked)
        for row, error in isolated.broken:
            about = {"tenant": row["tenant_id"], "firing_id": row["firing_id"]}
            log.error("firing failed", exc_info=error, extra=about)
            await self._or_postpone(row, self._fail(row, error_text(error)))

    async def _or_postpone(self, row: Row, work: Awaitable[None]) -> None:
        """Await work on one firing. If it waits for a lock, postpone the firing, so that it holds up no other."""
        try:
            await work
        except DatabaseBlockedError as error:
            await self._postpone([Failed(row, error)])

    async def _postpone(self, failed: Sequence[Failed[Row]]) -> None:
        """Return firings to the queue as if they had not been claimed, but until a later instant."""
        if failed:
            await in_transaction(self._database, partial(self._postpone_in, failed=failed))

    async def _postpone_in(self, tx: Transaction, failed: Sequence[Failed[Row]]) -> None:
        errors = {_key(row): error for row, error in failed}
        free, _ = await self._lease.find_free(tx, [row for row, _ in failed])
        retries = self._retries.of([Failed(_key(row), errors[_key(row)]) for row in free], self._clock.now())
        later = [(row, retries[_key(row)]) for row in free]
        await self._lease.retry(tx, [Failure(row, retry.error, retry.at, counts=False) for row, retry in later])

    async def _fire(self, tx: Transaction, rows: Sequence[Row], at: int) -> _Processed:
        """Fire the rows whose signal is active and fail the others. A row with a lost lease does not change."""
        before, not_read = await store.lock_in_portions(tx, sorted({signal_of(row) for row in rows}))
        signals = dict(before)
        done = _Processed(left=[row for row in rows if signal_of(row) in not_read])
        wanted = [row for row in rows if signal_of(row) not in not_read]
        held = await firing_store.lock_held(tx, wanted)
        done.lost = len(wanted) - len(held)
        for row in sorted(held, key=position_of):  # the oldest cause fires first
            signal = signals.get(signal_of(row))
            reason = refusal(signal, defined_of(row), position_of(row))
            if signal is None or reason is not None:
                done.refused.append(Failure(row, reason or "", at))
                continue
            signals[signal.key] = fire(signal, at)
            done.fired.append(row)
        await store.save_signals(tx, before, signals)
        await outbox.add(tx, [fired_event(row, at) for row in done.fired], at)
        await self._lease.complete(tx, done.fired, at)  # the rows are locked, so no lease is lost here
        await firing_store.fail(tx, done.refused, at)
        return done

    async def _fail(self, row: Row, error: str) -> None:
        attempt: int = row["attempt"]
        delay = self._backoff.delay(attempt, self._rng)
        failure = Failure(row, error, self._clock.now() + delay // timedelta(milliseconds=1))
        if attempt >= self._max_attempts:
            await self._give_up(failure)
            return
        retried = await in_transaction(self._database, lambda tx: self._lease.retry(tx, [failure]))
        self._count_settled("retried", retried, lost=1 - retried)

    async def _give_up(self, failure: Failure) -> None:
        """Bury a firing, pause its signal and publish a WorkSignalFailed."""
        at = self._clock.now()
        try:
            buried = await in_transaction(self._database, lambda tx: self._bury(tx, failure, at))
        except (DatabaseUnavailableError, ConflictError):
            raise
        except Exception:
            about = {"tenant": failure.row["tenant_id"], "firing_id": failure.row["firing_id"]}
            log.exception("signal of a firing cannot be paused; giving the firing up alone", extra=about)
            buried = await in_transaction(self._database, lambda tx: self._bury(tx, failure, at, alone=True))
        self._count_settled("buried", buried, lost=1 - buried)
        if buried:
            self._metrics.buried(FIRINGS.name, buried)
            self._wake(at)

    async def _bury(self, tx: Transaction, failure: Failure, at: int, *, alone: bool = False) -> int:
        """Bury a firing. `alone`: do not read the row of its signal, which may be damaged."""
        before = {} if alone else await store.find_locked(tx, [signal_of(failure.row)])
        buried = await firing_store.fail(tx, [failure], at)
        if buried:
            await store.save_signals(tx, before, {key: give_up(each, failure.error) for key, each in before.items()})
            await outbox.add(tx, [failed_event(failure, at)], at)
        return buried

    def _record(self, done: _Processed, at: int) -> None:
        self._count_settled("refused", len(done.refused), lost=done.lost)
        self._count_settled("fired", len(done.fired), lost=0)
        self._retries.forget(map(_key, done.fired))
        for row in done.fired:
            self._metrics.fired_late(FIRINGS.name, (at - row["due_at"]) / 1000)
        if done.fired:
            self._wake(at)

    def _count_settled(self, outcome: str, count: int, *, lost: int) -> None:
        if count:
            self._metrics.settled(FIRINGS.name, outcome, count)
        if lost:
            self._count_lost(lost)

    def _count_lost(self, count: int) -> None:
        self._metrics.leases_lost(count)
        log.warning("leases lost before they were settled", extra={"count": count})


def _key(row: Row) -> _Key:
    return row["tenant_id"], row["firing_id"]
