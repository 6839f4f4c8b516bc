"""The worker that ends workflows at their deadline.

One pass finds workflows whose deadline has passed, and ends them in one transaction, with their events. If the process
dies before the commit, their deadlines have still passed. Each tenant has an equal share of a pass. A workflow that
cannot be ended waits, and stops no other.
"""

from collections.abc import Sequence
from functools import partial

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.intake.backlog import RECHECK_MS, BacklogGate
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.workflows import store
from timer_service.workflows.events import events_of
from timer_service.workflows.keys import KEY_LOOP, frees_key
from timer_service.workflows.messages import FailureCode
from timer_service.workflows.workflow import Key

MOST_WORKFLOWS = 500
"""How many workflows one pass ends."""
_LOCKED_ROWS_PAUSE_MS = 50
"""How long to wait if other transactions have locked all workflows whose deadline has passed."""


class DeadlineWorker:
    """A worker that ends many workflows in each tick."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._wake = parts.wake
        self._gate = BacklogGate(parts.broker, parts.database)
        self._rows = DueRows(store.OVERDUE)
        self._retries = Retries[Key]("workflows")

    async def tick(self, now: int) -> Pass:
        """End workflows whose deadline has passed at `now`. The pass counts them, and those that cannot be ended.

        After a start and after an outage of the broker, a pass waits until the commands that were stored before are
        handled: one of them may end a workflow or extend its deadline.
        """
        reader = self._database.reader
        next_at = await self._rows.next_available(reader)
        if next_at is None or next_at > now:
            return Pass(0, next_at)
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        tenants, _ = await self._rows.turns.next_due(reader, now, MOST_WORKFLOWS)
        overdue = await self._rows.find(reader, tenants, now, MOST_WORKFLOWS // max(len(tenants), 1))
        handled = await self._end_each(list(map(store.key_of, overdue)), now)
        return Pass(handled, await self._rows.next_available(reader) if handled else now + _LOCKED_ROWS_PAUSE_MS)

    async def _end_each(self, overdue: Sequence[Key], now: int) -> int:
        """End workflows together, and postpone those that fail alone. Return how many were ended or postponed."""
        ended: list[int] = []
        isolated = await isolate_in_transactions(self._database, overdue, partial(self._end, now=now), ended.append)
        if isolated.failed:
            await in_transaction(self._database, partial(self._postpone, failed=isolated.failed, now=now))
        return sum(ended) + len(isolated.failed)

    async def _postpone(self, tx: Transaction, *, failed: Sequence[Failed[Key]], now: int) -> None:
        """Let workflows wait that failed alone, unless they have ended or are locked."""
        overdue = set(map(store.key_of, await self._rows.select_keys(tx, [each.item for each in failed], now)))
        await self._rows.postpone(tx, self._retries.of([each for each in failed if each.item in overdue], now))

    async def _end(self, tx: Transaction, keys: Sequence[Key], now: int) -> int:
        """End workflows whose deadline has passed. Return how many: others are locked, or their keys are damaged."""
        before = store.by_key(await self._rows.select_keys(tx, keys, now))
        after = {key: each.fail(FailureCode.DEADLINE, now) for key, each in before.items()}
        await store.advance(tx, before, after)
        await outbox.add(tx, events_of(before, after, now), now)
        if after:
            tx.on_commit(partial(self._wake, "outbox", now))
        if frees_key(after.values()):
            tx.on_commit(partial(self._wake, KEY_LOOP, now))
        return len(after)
