"""The worker that ends workflows at their deadline.

One pass is one transaction: it locks workflows whose deadline has passed, ends them, and adds their events. If the
process dies before the commit, their deadlines have still passed. Each tenant has an equal share of a pass.
"""

from functools import partial

from timer_service.core.due.loop import Pass
from timer_service.core.due.tenant_turns import TenantTurns
from timer_service.core.events import outbox
from timer_service.core.intake.backlog import RECHECK_MS, BacklogGate
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.workflows import store
from timer_service.workflows.events import events_of
from timer_service.workflows.messages import FailureCode

_MOST_WORKFLOWS = 500
"""How many workflows one pass ends."""
_LOCKED_ROWS_PAUSE_MS = 50
"""How long to wait if other transactions have locked all workflows whose deadline has passed."""


class DeadlineWorker:
    """A worker that ends many workflows in each tick."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "outbox")
        self._gate = BacklogGate(parts.broker, parts.database)
        self._turns = TenantTurns(store.DEADLINE_TENANTS)

    async def tick(self, now: int) -> Pass:
        """End workflows whose deadline has passed at `now`. The pass counts them.

        After a start and after an outage of the broker, a pass waits until the commands that were stored before are
        handled: one of them may end a workflow or extend its deadline.
        """
        next_at = await store.next_deadline(self._database.reader)
        if next_at is None or next_at > now:
            return Pass(0, next_at)
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        ended = await in_transaction(self._database, partial(self._end, now=now))
        if ended:
            self._wake(now)
            return Pass(ended, await store.next_deadline(self._database.reader))
        return Pass(0, now + _LOCKED_ROWS_PAUSE_MS)

    async def _end(self, tx: Transaction, *, now: int) -> int:
        tenants = await self._turns.next_due(tx, now, _MOST_WORKFLOWS)
        share = _MOST_WORKFLOWS // max(len(tenants), 1)
        locked = {each.key: each for each in await store.lock_past_deadline(tx, tenants, now, share)}
        damaged = await store.find_damaged(tx, locked)  # they cannot be ended
        before = {key: each for key, each in locked.items() if key not in damaged}
        after = {key: each.fail(FailureCode.DEADLINE, now) for key, each in before.items()}
        await store.advance(tx, before, after)
        await outbox.add(tx, events_of(before, after, now), now)
        return len(after)
