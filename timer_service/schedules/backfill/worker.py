"""The worker that fires the slots of backfills, portion by portion, and then announces what has become of each."""

from collections.abc import Collection
from functools import partial

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.intake.backlog import RECHECK_MS
from timer_service.core.service.slice import Parts
from timer_service.core.service.workflow_start import StartWorkflows
from timer_service.schedules.backfill import store
from timer_service.schedules.backfill.transaction import fire_portions
from timer_service.schedules.backfills import BackfillKey
from timer_service.schedules.slot_worker import Done, FiringGate, SlotTransactions

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
        self._gate = FiringGate(parts)
        self._over = parts.allowances.over
        self._rows = DueRows(store.BACKFILLS)
        self._transactions = SlotTransactions(
            *(parts, self._rows, store.TABLE),
            key_of=store.key_of,
            fire=partial(fire_portions, start=partial(start, quotas=parts.quotas)),
            report=self._report,
        )
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
        select = partial(self._rows.lock_oldest, tenants=tenants, now=now)
        if tenants and (handled := await self._transactions.run(select, now)):
            return Pass(handled, now)
        return Pass(0, now + (_PUBLISHING_PAUSE_MS if publishing else _LOCKED_PAUSE_MS))

    async def _publishing(self, now: int) -> Collection[str]:
        """Return the tenants whose events of their last portions, or events before these, are in the outbox.

        The other tenants are forgotten until their next portion.
        """
        added = {tenant: min(at, now) for tenant, at in self._added.items()}  # the clock may have been set back
        waiting = await outbox.find_waiting(self._database.reader, added) if added else set()
        self._added = {tenant: at for tenant, at in added.items() if tenant in waiting}
        return waiting

    def _report(self, done: Done[BackfillKey], now: int) -> None:
        self._added |= dict.fromkeys((key.tenant_id for key in done.fired), now)
