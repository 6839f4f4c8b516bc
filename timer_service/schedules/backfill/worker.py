"""The worker that fires the slots of backfills, portion by portion, and then announces what has become of each."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import starmap

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.intake.backlog import RECHECK_MS
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.schedules.backfill import store
from timer_service.schedules.backfill.transaction import Backfilled, fire_portions
from timer_service.schedules.backfills import BackfillKey
from timer_service.schedules.gate import FiringGate

_TENANTS = 5
"""How many tenants one transaction serves, with one backfill of each. Computing a slot takes 4 ms at most."""
_LOCKED_PAUSE_MS = 50
"""How long to wait for backfills that another instance has locked, or whose tenants must not publish events."""
_PUBLISHING_PAUSE_MS = 20
"""How long to wait before looking again whether the events of the last portions have left the outbox."""


class BackfillWorker:
    """A worker that fires the next portion of the oldest due backfill of some tenants in each tick.

    Tenants take turns, so many backfills of one tenant do not delay those of others. The next portion of a tenant
    follows when its events before that are being published. So a backfill does not fill the outbox, and other events
    hardly wait for it.
    """

    def __init__(self, parts: Parts, start: StartWorkflows) -> None:
        self._database = parts.database
        self._metrics = parts.metrics
        self._start = partial(start, quotas=parts.quotas)
        self._offer = parts.offer
        self._wake = parts.wake
        self._gate = FiringGate(parts.broker, parts.publishing, parts.database)
        self._over = parts.allowances.over
        self._rows = DueRows(store.BACKFILLS)
        self._retries = Retries[BackfillKey](store.TABLE)
        self._added: dict[str, int] = {}
        """The tenants whose last portions added events that have not left the outbox, and when."""

    async def tick(self, now: int) -> Pass:
        """Fire the next portions. Return how many backfills had one."""
        at = await self._rows.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(0, at)
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        publishing = await self._publishing(now)
        waiting = {*self._over(now), *publishing}
        tenants, _ = await self._rows.turns.next_due(self._database.reader, now, _TENANTS, waiting)
        if not tenants:
            return Pass(0, now + (_PUBLISHING_PAUSE_MS if publishing else _LOCKED_PAUSE_MS))
        handled = await self._handle_each(now, tenants)
        return Pass(handled, now if handled else now + _LOCKED_PAUSE_MS)

    async def _publishing(self, now: int) -> Collection[str]:
        """Return the tenants of which events of their last portions, or events before these, are in the outbox."""
        added = {tenant: min(at, now) for tenant, at in self._added.items()}  # the clock may have been set back
        waiting = await outbox.find_waiting(self._database.reader, added) if added else set()
        self._added = {tenant: at for tenant, at in added.items() if tenant in waiting}
        return waiting

    async def _handle_each(self, now: int, tenants: Sequence[str]) -> int:
        """Fire a portion of each tenant, and let the backfills wait that fail alone. Return how many these are.

        If several fail and none succeeds, the environment is at fault: raise an error, and change no backfill.
        """
        counts: list[int] = []

        def record(done: Backfilled) -> None:
            counts.append(len(done.handled) + len(done.failed))
            self._record(done, now)

        isolated = await isolate_in_transactions(self._database, tenants, partial(self._fire, now=now), record)
        isolated.raise_if_all_are_broken()
        if isolated.failed:
            postpone = partial(self._postpone, failed=isolated.failed, now=now)
            counts.append(await in_transaction(self._database, postpone))
        return sum(counts)

    async def _fire(self, tx: Transaction, tenants: Sequence[str], now: int) -> Backfilled:
        """Fire a portion of each tenant in one transaction."""
        rows = await self._rows.lock_oldest(tx, tenants, now)
        if not rows:
            return Backfilled()
        done = await fire_portions(tx, rows, start=self._start, now=now)
        await store.postpone(tx, self._retries.of(starmap(Failed, done.failed.items()), now))
        return done

    async def _postpone(self, tx: Transaction, failed: Sequence[Failed[str]], now: int) -> int:
        """Let the oldest due backfill of each tenant wait whose transaction has failed. Return how many wait."""
        errors = dict(failed)
        rows = await self._rows.lock_oldest(tx, errors, now)
        await store.postpone(
            tx, self._retries.of([Failed(store.key_of(row), errors[row["tenant_id"]]) for row in rows], now)
        )
        return len(rows)

    def _record(self, done: Backfilled, now: int) -> None:
        """Count what a transaction has committed, wake the relay, and offer the started workflows to workers."""
        self._retries.forget(done.handled)
        for name, count in (("fired", done.fired), ("failed", len(done.failed))):
            if count:
                self._metrics.settled(store.TABLE, name, count)
        for reason, count in done.not_started.items():
            self._metrics.slots_not_started(reason, count)
        for started in done.started:
            if started.lane is not None:
                self._offer(started.lane, now)
            if started.loop is not None:
                self._wake(started.loop, now)
        if done.with_events:
            self._added |= dict.fromkeys(done.with_events, now)
            self._wake("outbox", now)
