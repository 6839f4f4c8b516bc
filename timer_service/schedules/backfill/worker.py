"""The worker that fires the slots of backfills, portion by portion, and then announces what has become of each."""

import logging
from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial

from timer_service.core.due.blame import Blame, blame
from timer_service.core.due.loop import Pass
from timer_service.core.due.tenant_turns import TenantTurns
from timer_service.core.events import outbox
from timer_service.core.intake.backlog import RECHECK_MS
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.core.values.delays import Delays
from timer_service.core.values.error_text import error_text
from timer_service.schedules.backfill import store
from timer_service.schedules.backfill.transaction import Backfilled, fire_portions
from timer_service.schedules.backfills import BackfillKey
from timer_service.schedules.gate import FiringGate

log = logging.getLogger(__name__)

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
        self._gate = FiringGate(parts.broker, parts.publishing, parts.database, parts.allowances.over)
        self._over = parts.allowances.over
        self._turns = TenantTurns(store.DUE_TENANTS)
        self._delays = Delays()
        self._added: dict[str, int] = {}
        """The tenants whose last portions added events that have not left the outbox, and when."""

    async def tick(self, now: int) -> Pass:
        """Fire the next portions. Return how many backfills had one."""
        at = await store.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(0, at)
        if not await self._gate.is_open(now):
            return Pass(0, now + RECHECK_MS)
        publishing = await self._publishing(now)
        tenants = await self._turns.next_due(self._database.reader, now, _TENANTS, {*self._over(now), *publishing})
        if not tenants:
            return Pass(0, now + (_PUBLISHING_PAUSE_MS if publishing else _LOCKED_PAUSE_MS))
        try:
            handled = await self._handle(now, tenants)
        except Exception as error:
            if len(tenants) == 1 or blame(error) not in {Blame.COMMAND, Blame.BLOCKED}:
                return Pass(await self._blame(now, tenants, error), now)
            log.warning("firing backfills failed; firing each alone", exc_info=error)
            handled = await self._handle_each(now, tenants)
        return Pass(handled, now if handled else now + _LOCKED_PAUSE_MS)

    async def _publishing(self, now: int) -> Collection[str]:
        """Return the tenants of which events of their last portions, or events before these, are in the outbox."""
        added = {tenant: min(at, now) for tenant, at in self._added.items()}  # the clock may have been set back
        waiting = await outbox.find_waiting(self._database.reader, added) if added else set()
        self._added = {tenant: at for tenant, at in added.items() if tenant in waiting}
        return waiting

    async def _handle(self, now: int, tenants: Collection[str]) -> int:
        """Fire a portion of each tenant in one transaction. Return how many backfills had one, or failed."""

        async def fire(tx: Transaction) -> Backfilled:
            rows = await store.lock_due(tx, tenants, now)
            if not rows:
                return Backfilled()
            done = await fire_portions(tx, rows, start=self._start, now=now)
            await self._postpone(tx, done.failed, now)
            return done

        done = await in_transaction(self._database, fire)
        self._record(done, now)
        return len(done.handled) + len(done.failed)

    async def _handle_each(self, now: int, tenants: Collection[str]) -> int:
        """Fire each tenant in a transaction of its own. A backfill that fails waits, and holds no other.

        If all fail, the environment is at fault: raise the first error, and change no backfill.
        """
        handled, failed = 0, dict[str, Exception]()
        for tenant in tenants:
            try:
                handled += await self._handle(now, [tenant])
            except Exception as error:  # noqa: BLE001 - `blame` knows every error
                failed[tenant] = error
        for tenant, reason in failed.items():
            if len(failed) == len(tenants) and blame(reason) is not Blame.BLOCKED:
                raise reason
            handled += await self._blame(now, [tenant], reason)
        return handled

    async def _blame(self, now: int, tenants: Collection[str], error: Exception) -> int:
        """Let the oldest due backfill of a tenant wait, because it has failed alone. Raise other errors."""
        if blame(error) not in {Blame.COMMAND, Blame.BLOCKED}:
            raise error

        async def postpone(tx: Transaction) -> int:
            rows = await store.lock_due(tx, tenants, now)
            await self._postpone(tx, {store.key_of(row): error_text(error) for row in rows}, now)
            return len(rows)

        return await in_transaction(self._database, postpone)

    async def _postpone(self, tx: Transaction, errors: Mapping[BackfillKey, str], now: int) -> None:
        """Let locked backfills wait, longer each time."""
        until: dict[BackfillKey, int] = {}
        for key, reason in errors.items():
            delay = self._delays.next(key)
            until[key] = now + delay // timedelta(milliseconds=1)
            about = {"tenant": key.tenant_id, "position": str(key.position), "seconds": delay.total_seconds()}
            log.warning("the slots of a backfill did not fire; trying it later", extra={**about, "reason": reason})
        await store.postpone(tx, until, errors)

    def _record(self, done: Backfilled, now: int) -> None:
        """Count what a transaction has committed, wake the relay, and offer the started workflows to workers."""
        for key in done.handled:
            self._delays.forget(key)
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
