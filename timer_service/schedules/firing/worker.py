"""The worker that fires due slots.

One pass is one transaction: it selects due schedules, decides which slots fire, writes the cursors and adds the events
to the outbox. If the process dies before the commit, the slots are still due, with the same event ids.
"""

from collections.abc import Sequence
from functools import partial

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.loop import Pass
from timer_service.core.intake.backlog import RECHECK_MS
from timer_service.core.ports.database import Row, Transaction
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.schedules import store
from timer_service.schedules.firing.transaction import FiredSchedules, LeftToOthers, fire_schedules
from timer_service.schedules.firing.zones import ZoneScan
from timer_service.schedules.room import MOST_SLOTS
from timer_service.schedules.slot_worker import FiringGate, SlotTransactions
from timer_service.schedules.store import SCHEDULES

LOOP = "schedules"
"""The loop of this worker."""
_LEAST_ROWS = 50
_PAUSE_MS = 50
"""How long to wait before the next pass if all due schedules are locked, or left to other instances."""


class FiringWorker:
    """A worker that fires the due slots of many schedules in each tick."""

    def __init__(self, parts: Parts, start: StartWorkflows) -> None:
        self._database = parts.database
        self._metrics = parts.metrics
        self._rows = DueRows(SCHEDULES)
        self._over = parts.allowances.over
        self._gate = FiringGate(parts)
        self._zones = ZoneScan(parts.database)
        self._left = 0
        """How many schedules were left to other instances since these got a hint."""
        self._hint = partial(parts.broker.hint, LOOP)
        to_others = LeftToOthers(exclusive=parts.database.exclusive)
        self._transactions = SlotTransactions(
            *(parts, self._rows, SCHEDULES.name),
            key_of=store.key_of,
            fire=partial(fire_schedules, to_others=to_others, start=partial(start, quotas=parts.quotas)),
            report=self._report,
        )
        self._limit = MOST_SLOTS
        """How many schedules to select: not many more than one pass can handle."""

    async def tick(self, now: int) -> Pass:
        """Fire the slots that are due at `now`. The pass counts the schedules.

        While the broker is away or has no room, nothing fires, so that the outbox does not fill up. After that, each
        schedule follows its policy.
        """
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        zones_at = await self._zones.step(now)
        handled = await self._transactions.run(partial(self._select, now=now), now)
        if self._left:
            self._left = 0
            await self._hint(now)
        at = await self._rows.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(handled, min((each for each in (at, zones_at) if each is not None), default=None))
        return Pass(handled, now if handled else now + _PAUSE_MS)

    async def _select(self, tx: Transaction, now: int) -> Sequence[Row]:
        return await self._rows.select(tx, now, self._limit, self._over(now))

    def _report(self, done: FiredSchedules, now: int) -> None:
        """Count what a transaction has done, and choose how many schedules the next one selects."""
        self._left += done.left
        if done.is_whole:
            self._limit = min(2 * self._limit, MOST_SLOTS)
        else:
            self._limit = max(2 * done.handled, _LEAST_ROWS)
        for before, decision in done.decided:
            not_started = done.fired[before.key].not_started
            for slot in decision.slots:
                if slot not in not_started:
                    self._metrics.fired_late(SCHEDULES.name, (now - before.due_of(slot)) / 1000)
        if skipped := sum(decision.skipped for _, decision in done.decided):
            self._metrics.slots_missed(skipped)
        if done.left:
            self._metrics.settled(SCHEDULES.name, "left", done.left)
