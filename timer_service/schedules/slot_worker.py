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
        self._close_after_failures(now)
        return await self._backlog.is_open(now) and self._publishing.health.usable and now >= self._closed_until

    def _close_after_failures(self, now: int) -> None:
        """Close the gate for ten seconds if publishing has failed since the last call."""
        if self._failures != self._publishing.failures:
            self._failures, self._closed_until = self._publishing.failures, now + _QUIET_MS
        self._closed_until = min(self._closed_until, now + _QUIET_MS)  # the clock may have been set back


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
        self._parts = parts
        self._rows = rows
        self._table = table
        self._key_of = key_of
        self._fire = fire
        self._report = report
        self._retries = Retries[K](table)

    async def run(self, select: Callable[[Transaction], Awaitable[Sequence[Row]]], now: int) -> int:
        """Fire the rows that `select` locks, in one transaction. Return how many were handled.

        If the transaction fails, the rows that fail alone are postponed, and the others fire.
        """
        selected: list[Row] = []  # those of the last try: a transaction is tried again after a conflict

        async def select_and_fire(tx: Transaction) -> D:
            selected[:] = await select(tx)
            return await self._fire_rows(tx, selected, now)

        try:
            done = await in_transaction(self._parts.database, select_and_fire)
        except Exception as error:
            if not selected:  # no row is at fault
                raise
            return await self._fire_apart([self._key_of(row) for row in selected], error, now)
        self._record(done, now)
        return done.handled

    async def _fire_apart(self, keys: list[K], error: Exception, now: int) -> int:
        """Fire rows again in smaller transactions, and postpone those that fail alone. Return how many were handled.

        `error`: the error of all rows together. If several rows fail and none fires, the environment is at fault: the
        error is raised, and no row changes.
        """

        async def fire_keys(tx: Transaction, part: Sequence[K]) -> D:
            return await self._fire_rows(tx, await self._rows.select_keys(tx, part, now), now)

        database = self._parts.database
        self._parts.rng.shuffle(keys)  # so that some fire before the time is up, however many fail
        isolated = await isolate_in_transactions(
            database, keys, fire_keys, partial(self._record, now=now), failed=error
        )
        isolated.raise_if_all_are_broken()
        if isolated.failed:
            await in_transaction(database, partial(self._postpone, failed=isolated.failed, now=now))
        return len(isolated.done) + len(isolated.failed)

    async def _fire_rows(self, tx: Transaction, rows: Sequence[Row], now: int) -> D:
        """Fire locked rows, and postpone those that this instance cannot read or compute."""
        done = await self._fire(tx, rows, now)
        await self._rows.postpone(tx, self._retries.of(done.failed, now))
        return done

    async def _postpone(self, tx: Transaction, *, failed: Sequence[Failed[K]], now: int) -> None:
        """Postpone rows that failed alone, except those that another instance has locked in the meantime."""
        rows = await self._rows.select_keys(tx, [key for key, _ in failed], now)
        locked_here = set(map(self._key_of, rows))
        await self._rows.postpone(tx, self._retries.of([each for each in failed if each.item in locked_here], now))

    def _record(self, done: D, now: int) -> None:
        """After a commit, count what has become of slots, and wake the relay, the workers and the loops."""
        self._report(done, now)
        self._retries.forget(done.fired)
        metrics = self._parts.metrics
        if fired_count := sum(each.fired for each in done.fired.values()):
            metrics.settled(self._table, "fired", fired_count)
        if done.failed:
            metrics.settled(self._table, "failed", len(done.failed))
        for fired in done.fired.values():
            for reason in fired.not_started.values():
                metrics.slots_not_started(reason, 1)
            for started in fired.started:
                if started.lane is not None:
                    self._parts.offer(started.lane, now)
                if started.loop is not None:
                    self._parts.wake(started.loop, now)
        if done.fired:
            self._parts.wake("outbox", now)
