"""The worker that processes due firings.

One pass is one transaction: it marks the signals as fired, settles the firings, which are then the follow-up tasks, and
adds the events. It never waits for a lock. If the process dies before the commit, the firings are still due.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Isolated, Retries, Retry, isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.positions import read_position
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.values.delays import Backoff
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseBlockedError
from timer_service.signals import firing_store, store
from timer_service.signals.events import failed_event, fired_event
from timer_service.signals.firing_store import FIRINGS, FiringKey, key_of, signal_of
from timer_service.signals.firings import FiringStatus, refusal
from timer_service.signals.signal import Key, Signal, fire

log = logging.getLogger(__name__)

_IS_LOCKED = DatabaseBlockedError("another session has locked the signal")
_LOCKED_PAUSE_MS = 5
"""How long to wait before the next pass if another instance has locked all due firings."""


class _Processed(NamedTuple):
    """The result of processing due firings."""

    fired: Sequence[Row] = ()
    refused: int = 0
    retried: int = 0
    buried: int = 0


class FiringWorker:
    """A worker that processes one batch of firings in each tick."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._metrics = parts.metrics
        self._batch_size = parts.batch_size
        self._max_attempts = parts.max_attempts
        self._wake = partial(parts.wake, "outbox")
        self._backoff = Backoff()
        self._rng = parts.rng
        self._rows = DueRows(FIRINGS)
        self._retries = Retries[FiringKey](FIRINGS.name)

    async def tick(self, now: int) -> Pass:
        """Process at most one batch of the firings that are due at `now`. The pass counts them.

        If their transaction fails, they are processed again in smaller ones.
        """
        keys: list[FiringKey] = []  # what the last attempt has selected

        async def fire_due(tx: Transaction) -> _Processed:
            rows = await self._rows.select(tx, now, self._batch_size)
            keys[:] = map(key_of, rows)
            return await self._fire(tx, rows, now)

        try:
            self._record(await in_transaction(self._database, fire_due), now)
        except Exception as error:
            if not keys:
                raise
            await self._fire_apart(keys, error, now)
        at = await self._rows.next_available(self._database.reader)
        is_due = at is not None and at <= now
        return Pass(len(keys), now + _LOCKED_PAUSE_MS if is_due and not keys else at)

    async def _fire(self, tx: Transaction, rows: Sequence[Row], now: int) -> _Processed:
        """Fire the rows whose signal is active, and refuse the others. Those that `_lock_signals` leaves out wait."""
        before, ready = await self._lock_signals(tx, rows, now)
        signals = dict(before)
        fired: list[Row] = []
        refused: dict[FiringKey, str] = {}
        for row in sorted(ready, key=read_position):  # the oldest cause of a signal fires, and the others are refused
            signal = signals.get(signal_of(row))
            if signal is None:
                refused[key_of(row)] = "the signal does not exist"
            elif (reason := refusal(signal, read_position(row, "defined"), read_position(row))) is not None:
                refused[key_of(row)] = reason
            else:
                signals[signal.key] = fire(signal, now)
                fired.append(row)
        await store.save_signals(tx, before, signals)
        await outbox.add(tx, [fired_event(row, now) for row in fired], now)
        await firing_store.settle(tx, FiringStatus.ENQUEUED, dict.fromkeys(map(key_of, fired)), now)
        await firing_store.settle(tx, FiringStatus.FAILED, refused, now)
        return _Processed(fired, refused=len(refused))

    async def _lock_signals(
        self, tx: Transaction, rows: Sequence[Row], now: int
    ) -> tuple[Mapping[Key, Signal], Sequence[Row]]:
        """Lock the signals of rows. Return those that exist, and the rows that can be processed now.

        If the signals have too much data, the last rows are left for the next pass. Rows whose signal another session
        has locked wait, without an attempt.
        """
        signals, left = await store.lock_in_portions(tx, sorted({signal_of(row) for row in rows}), store.SKIP)
        wanted = [row for row in rows if signal_of(row) not in left]
        locked = await store.find(tx, {signal_of(row) for row in wanted} - signals.keys())
        blocked = [Failed(key_of(row), _IS_LOCKED) for row in wanted if signal_of(row) in locked]
        await self._rows.postpone(tx, self._retries.of(blocked, now))
        return signals, [row for row in wanted if signal_of(row) not in locked]

    async def _fire_apart(self, keys: Sequence[FiringKey], error: Exception, now: int) -> None:
        """Process the firings of a pass that failed. Those that fail alone are tried again later, or given up."""

        async def fire_keys(tx: Transaction, part: Sequence[FiringKey]) -> _Processed:
            return await self._fire(tx, await self._rows.select_keys(tx, part, now), now)

        record = partial(self._record, now=now)
        isolated = await isolate_in_transactions(self._database, keys, fire_keys, record, failed=error)
        if isolated.failed:
            record(await in_transaction(self._database, partial(self._settle_failed, isolated=isolated, now=now)))

    async def _settle_failed(self, tx: Transaction, isolated: Isolated[FiringKey], now: int) -> _Processed:
        """Count an attempt of the broken firings. Give up those without attempts left: their signals are paused.

        Blocked firings wait without an attempt. So do those to give up whose signal another session has locked.
        """
        due = await self._rows.select_keys(tx, [key for key, _ in isolated.failed], now)
        rows = {key_of(row): row for row in due}
        retried: dict[FiringKey, Retry] = {}
        exhausted: dict[FiringKey, str] = {}
        for key, error in isolated.broken:
            if key not in rows:  # another instance has settled it
                continue
            log.error("firing failed", exc_info=error, extra={"tenant": key.tenant_id, "firing_id": key.firing_id})
            if rows[key]["attempt"] + 1 < self._max_attempts:
                retried[key] = self._next_attempt(rows[key], error, now)
            else:
                exhausted[key] = error_text(error)
        free = await store.lock_free_keys(tx, {signal_of(rows[key]) for key in exhausted})
        buried = {key: error for key, error in exhausted.items() if signal_of(rows[key]) in free}
        waiting = [each for each in isolated.blocked if each.item in rows]
        waiting += [Failed(key, _IS_LOCKED) for key in exhausted if key not in buried]
        await self._rows.postpone(tx, self._retries.of(waiting, now))
        await firing_store.retry(tx, retried)
        await firing_store.settle(tx, FiringStatus.FAILED, buried, now)
        await store.pause(tx, {signal_of(rows[key]): error for key, error in buried.items()})
        await outbox.add(tx, [failed_event(rows[key], error, now) for key, error in buried.items()], now)
        return _Processed(retried=len(retried), buried=len(buried))

    def _next_attempt(self, row: Row, error: Exception, now: int) -> Retry:
        """Return when a broken firing is tried again: after a random delay that grows with its attempts."""
        delay = self._backoff.delay(row["attempt"] + 1, self._rng)
        return Retry(now + delay // timedelta(milliseconds=1), error_text(error))

    def _record(self, done: _Processed, now: int) -> None:
        """Count what a transaction has committed, and wake the relay."""
        for row in done.fired:
            self._metrics.fired_late(FIRINGS.name, (now - row["due_at"]) / 1000)
        counts = {"fired": len(done.fired), "refused": done.refused, "retried": done.retried, "buried": done.buried}
        for outcome, count in counts.items():
            if count:
                self._metrics.settled(FIRINGS.name, outcome, count)
        if done.buried:
            self._metrics.buried(FIRINGS.name, done.buried)
        if done.fired or done.buried:
            self._wake(now)
