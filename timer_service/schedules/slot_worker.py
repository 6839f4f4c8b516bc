"""What the two workers that fire slots share: when they may, how they go on after a failure, and what they report."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.schedules.firings import Fired

_QUIET_MS = 10_000
"""How long no event was refused before slots fire again. While events wait, the relay tries more often than that."""

K = TypeVar("K", bound=tuple[Any, ...])


class FiringGate:
    """Closed until the commands of an outage have been handled, while events cannot be published, and soon after that.

    A PauseSchedule that was sent while the service or the broker was away shall stop the slots that became due
    meanwhile. And while the event stream is full, the outbox shall not grow.
    """

    def __init__(self, parts: Parts) -> None:
        self._backlog = BacklogGate(parts.broker, parts.database)
        self._publishing = parts.publishing
        self._failures = 0
        """The failures of publishing that the gate has seen."""
        self._closed_until = 0

    async def is_open(self, now: int) -> bool:
        """Return whether slots may fire at `now`. If not, ask again after `RECHECK_MS`.

        They may if the commands of the last outage were handled, events can be published, and none was refused lately.
        """
        if self._failures != self._publishing.failures:
            self._failures, self._closed_until = self._publishing.failures, now + _QUIET_MS
        self._closed_until = min(self._closed_until, now + _QUIET_MS)  # the clock may have been set back
        return await self._backlog.is_open(now) and self._publishing.health.usable and now >= self._closed_until


@dataclass(slots=True)
class Done(Generic[K]):
    """What one transaction has done."""

    fired: dict[K, Fired] = field(default_factory=dict)
    """How the slots of each row ended, by its key."""
    failed: list[Failed[K]] = field(default_factory=list)
    """The rows that this instance cannot read or compute. They wait."""

    @property
    def handled(self) -> int:
        """The number of rows."""
        return len(self.fired) + len(self.failed)


D = TypeVar("D", bound=Done[Any])


class SlotTransactions(Generic[K, D]):
    """The transactions in which a worker fires the slots of due rows."""

    def __init__(
        self,
        parts: Parts,
        rows: DueRows,
        table: str,
        *,
        key_of: Callable[[Row], K],
        fire: Callable[[Transaction, Sequence[Row], int], Awaitable[D]],
        report: Callable[[D, int], None],
    ) -> None:
        """`fire` fires locked rows. `report` is called after each commit."""
        self._database = parts.database
        self._metrics = parts.metrics
        self._offer = parts.offer
        self._wake = parts.wake
        self._rng = parts.rng
        self._rows = rows
        self._table = table
        self._key_of = key_of
        self._fire = fire
        self._report = report
        self._retries = Retries[K](table)

    async def run(self, select: Callable[[Transaction], Awaitable[Sequence[Row]]], now: int) -> int:
        """Fire the rows that `select` locks, in one transaction if it succeeds. Return how many were handled.

        Otherwise, those wait that fail alone, or whose workflow is locked. If several fail and none fires, the
        environment is at fault: raise the error, and change no row.
        """
        rows: list[Row] = []

        async def fire_due(tx: Transaction) -> D:
            rows[:] = await select(tx)
            return await self._fire_rows(tx, rows, now)

        try:
            done = await in_transaction(self._database, fire_due)
        except Exception as error:
            if not rows:
                raise
            return await self._fire_apart(rows, error, now)
        self._record(done, now)
        return done.handled

    async def _fire_apart(self, rows: Sequence[Row], error: Exception, now: int) -> int:
        """Fire rows again in smaller transactions, and postpone those that fail. Return how many were handled."""
        handled: list[int] = []

        async def fire_keys(tx: Transaction, keys: Sequence[K]) -> D:
            return await self._fire_rows(tx, await self._rows.select_keys(tx, keys, now), now)

        def record(done: D) -> None:
            handled.append(done.handled)
            self._record(done, now)

        keys = [self._key_of(row) for row in rows]
        self._rng.shuffle(keys)  # so that some fire before the time is up, however many fail
        isolated = await isolate_in_transactions(self._database, keys, fire_keys, record, failed=error)
        isolated.raise_if_all_are_broken()
        if isolated.failed:
            await in_transaction(self._database, partial(self._postpone, failed=isolated.failed, now=now))
        return sum(handled) + len(isolated.failed)

    async def _fire_rows(self, tx: Transaction, rows: Sequence[Row], now: int) -> D:
        done = await self._fire(tx, rows, now)
        await self._rows.postpone(tx, self._retries.of(done.failed, now))
        return done

    async def _postpone(self, tx: Transaction, *, failed: Sequence[Failed[K]], now: int) -> None:
        rows = await self._rows.select_keys(tx, [key for key, _ in failed], now)
        free = set(map(self._key_of, rows))  # another instance has locked the others
        await self._rows.postpone(tx, self._retries.of([each for each in failed if each.item in free], now))

    def _record(self, done: D, now: int) -> None:
        """Count what has become of slots, and tell the relay, the workers of workflows and the loops about it."""
        self._report(done, now)
        self._retries.forget(done.fired)
        fired = done.fired.values()
        for name, count in (("fired", sum(each.fired for each in fired)), ("failed", len(done.failed))):
            if count:
                self._metrics.settled(self._table, name, count)
        for reason in (reason for each in fired for reason in each.not_started.values()):
            self._metrics.slots_not_started(reason, 1)
        for started in (started for each in fired for started in each.started):
            if started.lane is not None:
                self._offer(started.lane, now)
            if started.loop is not None:
                self._wake(started.loop, now)
        if done.fired:
            self._wake("outbox", now)
