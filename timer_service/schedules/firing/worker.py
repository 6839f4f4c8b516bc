"""The worker that fires due slots.

One pass is one transaction: it selects due schedules, decides which slots fire, writes the cursors and adds the events
to the outbox. If the process dies before the commit, the slots are still due, with the same event ids.
"""

import logging
from collections.abc import Sequence
from functools import partial

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.intake.backlog import RECHECK_MS
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.schedules import store
from timer_service.schedules.firing.left_to_others import LeftToOthers
from timer_service.schedules.firing.pass_order import PassOrder
from timer_service.schedules.firing.transaction import MOST_SLOTS, Fired, fire
from timer_service.schedules.gate import FiringGate
from timer_service.schedules.schedule import Key
from timer_service.schedules.store import SCHEDULES

log = logging.getLogger(__name__)

LOOP = "schedules"
"""The loop of this worker."""
_LEAST_ROWS = 50
_LOCKED_ROWS_PAUSE_MS = 5
"""How long to wait before the next pass if another instance has locked all due schedules."""
_LEFT_ROWS_PAUSE_MS = 50
"""The same if they are left to other instances. Schedules that become due meanwhile wait for so long."""


class FiringWorker:
    """A worker that fires the due slots of many schedules in each tick."""

    def __init__(self, parts: Parts, start: StartWorkflows) -> None:
        self._database = parts.database
        self._metrics = parts.metrics
        self._start = partial(start, quotas=parts.quotas)
        self._offer = parts.offer
        self._wake_loop = parts.wake
        self._wake = partial(parts.wake, "outbox")
        self._rows = DueRows(SCHEDULES)
        self._over = parts.allowances.over
        self._gate = FiringGate(parts.broker, parts.publishing, parts.database)
        self._order = PassOrder()
        self._to_others = LeftToOthers(exclusive=parts.database.exclusive)
        self._hint = partial(parts.broker.hint, LOOP)
        self._rng = parts.rng
        self._retries = Retries[Key](SCHEDULES.name)
        self._limit = MOST_SLOTS
        """How many schedules to select: not many more than one pass can handle."""

    async def tick(self, now: int) -> Pass:
        """Fire the slots that are due at `now`. The pass counts the schedules.

        While the broker is away or has no room, nothing fires, so that the outbox does not fill up. After that, each
        schedule follows its policy.
        """
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        rows: list[Row] = []

        async def fire_due(tx: Transaction) -> Fired:
            rows[:] = await self._rows.select(tx, now, self._limit, self._over(now), self._order.rests)
            return await self._fire(tx, rows, now)

        try:
            fired = await in_transaction(self._database, fire_due)
        except Exception as error:
            is_slow = blame(error) is Blame.BLOCKED and all(row["start"] is None for row in rows)
            if is_slow or not rows:  # only workflows can be locked
                raise
            return Pass(await self._fire_apart(rows, error, now), await self._next_at(now))
        self._record(fired, now)
        if fired.newly_left:
            await self._hint(now)
        self._limit = min(2 * self._limit, MOST_SLOTS) if fired.is_whole else max(2 * fired.handled, _LEAST_ROWS)
        return Pass(fired.handled, await self._next_at(now, _pause_ms(fired)))

    async def _next_at(self, now: int, pause_ms: int = 0) -> int | None:
        """Return when the next schedule is due. `pause_ms`: how long to wait if there are due ones."""
        at = await self._rows.next_available(self._database.reader)
        return now + pause_ms if at is not None and at <= now else at

    async def _fire(self, tx: Transaction, rows: Sequence[Row], now: int) -> Fired:
        if not rows:
            return Fired()
        return await fire(tx, rows, self._order, self._to_others, start=self._start, now=now)

    async def _fire_keys(self, tx: Transaction, keys: Sequence[Key], now: int) -> Fired:
        return await self._fire(tx, await self._rows.select_keys(tx, keys, now), now)

    async def _fire_apart(self, rows: Sequence[Row], error: Exception, now: int) -> int:
        """Fire the schedules of a pass that failed. Those wait that fail alone, or whose workflow is locked.

        If several fail and none fires, the environment is at fault: raise the error, and change no schedule. Return the
        number of handled schedules.
        """
        done: list[Fired] = []

        def record(fired: Fired) -> None:
            done.append(fired)
            self._record(fired, now)

        keys = [store.key_of(row) for row in rows]
        self._rng.shuffle(keys)  # so that some fire before the time is up, however many fail
        fire_keys = partial(self._fire_keys, now=now)
        isolated = await isolate_in_transactions(self._database, keys, fire_keys, record, failed=error)
        isolated.raise_if_all_are_broken()
        if isolated.failed:
            await in_transaction(self._database, partial(self._postpone, failed=isolated.failed, now=now))
        if any(fired.newly_left for fired in done):
            await self._hint(now)
        return sum(fired.handled for fired in done) + len(isolated.failed)

    async def _postpone(self, tx: Transaction, *, failed: Sequence[Failed[Key]], now: int) -> None:
        rows = await self._rows.select_keys(tx, [key for key, _ in failed], now)
        free = set(map(store.key_of, rows))  # another instance has locked the others
        await store.postpone(tx, self._retries.of([each for each in failed if each.item in free], now))

    def _record(self, fired: Fired, now: int) -> None:
        """Count what a transaction has committed, and wake the relay."""
        slots = [(each.before, slot) for each in fired.firings for slot in each.decision.fired]
        self._retries.forget(each.before.key for each in fired.firings)
        self._to_others.record(fired.newly_left, now)
        for schedule, slot in slots:
            self._metrics.fired_late(SCHEDULES.name, (now - schedule.due_of(slot)) / 1000)
        self._record_starts(fired, now)
        if skipped := sum(each.decision.skipped for each in fired.firings):
            self._metrics.slots_missed(skipped)
        for name, count in (
            ("fired", len(slots)),
            ("failed", len(fired.failed) + len(fired.unreadable)),
            ("left", len(fired.newly_left)),
        ):
            if count:
                self._metrics.settled(SCHEDULES.name, name, count)
        for schedule in fired.failed:
            _log_failure(schedule.key, schedule.last_error)
        for key, reason in fired.unreadable.items():
            _log_failure(key, reason)
        for key, _, reason in fired.newly_left:
            log.warning("this instance cannot compute a schedule; leaving it to others", extra=_about(key, reason))
        if fired.firings:
            self._wake(now)

    def _record_starts(self, fired: Fired, now: int) -> None:
        """Count the slots that started no workflow, and offer the workflows that were started to workers."""
        for reason, count in fired.not_started.items():
            self._metrics.slots_not_started(reason, count)
        for key in fired.taken:
            about = {"tenant": key.tenant_id, "schedule_id": key.schedule_id}
            log.warning("a slot started no workflow: there is another one with its id", extra=about)
        for started in fired.started:
            if started.lane is not None:
                self._offer(started.lane, now)
            if started.loop is not None:
                self._wake_loop(started.loop, now)


def _pause_ms(fired: Fired) -> int:
    """Return how long to wait before the next pass if schedules are still due."""
    if fired.handled or fired.newly_left:
        return 0
    return _LEFT_ROWS_PAUSE_MS if fired.left else _LOCKED_ROWS_PAUSE_MS


def _log_failure(key: Key, reason: str | None) -> None:
    log.error(
        "the next slot of a schedule cannot be computed or fired; trying it again in a minute",
        extra=_about(key, reason),
    )


def _about(key: Key, reason: str | None) -> dict[str, str | None]:
    return {"tenant": key.tenant_id, "schedule_id": key.schedule_id, "reason": reason}
