"""The worker that cancels the timers of a CancelTimers, page by page, and then announces how many it has cancelled."""

import logging
from collections.abc import Collection
from datetime import timedelta
from functools import partial

from timer_service.core.due.loop import Pass
from timer_service.core.due.tenant_turns import TenantTurns
from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.values.delays import Delays
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError
from timer_service.timers import cancellations
from timer_service.timers.cancellations import Cancellation

log = logging.getLogger(__name__)

_TIMERS = 1000
"""How many timers one transaction reads, shared equally by the tenants. On SQLite it takes 10 to 20 ms, so
commands and claims hardly wait."""
_TENANTS = 20
"""How many tenants one transaction serves, with one cancellation of each. So each page has 50 timers or more."""
_LOCKED_PAUSE_MS = 50
"""How long to wait for cancellations that another instance has locked."""


class CancellationWorker:
    """A worker that handles the next page of the oldest due cancellation of some tenants in each tick.

    Tenants take turns, so many cancellations of one tenant do not delay those of others. All older commands of the
    tenant are committed, because its commands are applied in the order of the log. Timers of newer ones are left alone.
    """

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "outbox")
        self._turns = TenantTurns(cancellations.DUE_TENANTS)
        self._delays = Delays()

    async def tick(self, now: int) -> Pass:
        """Read the next pages, and cancel their timers. Return how many cancellations had a page."""
        at = await cancellations.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(0, at)
        tenants = await self._turns.next_due(self._database.reader, now, _TENANTS)
        try:
            handled = await self._handle_in_transaction(now, tenants)
        except DatabaseUnavailableError as error:
            if not isinstance(error, DatabaseBlockedError):
                raise
            handled = await self._handle_each(now, tenants)
        except Exception:
            log.exception("cancelling timers failed; handling each cancellation alone")
            handled = await self._handle_each(now, tenants)
        return Pass(handled, now if handled else now + _LOCKED_PAUSE_MS)

    async def _handle_in_transaction(self, now: int, tenants: Collection[str]) -> int:
        handled, finished = await in_transaction(self._database, partial(self._handle, now=now, tenants=tenants))
        if finished:
            self._wake(now)
        return handled

    async def _handle(self, tx: Transaction, now: int, tenants: Collection[str]) -> tuple[int, int]:
        """Handle one page of each tenant. Return how many had a page, and how many cancellations are finished."""
        due = await cancellations.lock_due(tx, tenants, now)
        share = max(_TIMERS // max(len(due), 1), cancellations.LEAST_TIMERS)
        unfinished: list[Cancellation] = []
        finished: list[Cancellation] = []
        for each in due:
            page = await cancellations.read_page(tx, each, share)
            cancelled = await cancellations.cancel_page(tx, each, page.calls, now)
            (finished if page.is_last else unfinished).append(each.after_page(page, cancelled))
        await cancellations.save(tx, unfinished)
        await cancellations.delete(tx, finished)
        await outbox.add(tx, [each.event(now) for each in finished], now)
        return len(due), len(finished)

    async def _handle_each(self, now: int, tenants: Collection[str]) -> int:
        """Handle each tenant in a transaction of its own. A cancellation that fails waits, and holds no other."""
        handled = 0
        for tenant in tenants:
            try:
                handled += await self._handle_in_transaction(now, [tenant])
            except Exception as error:
                if isinstance(error, DatabaseUnavailableError) and not isinstance(error, DatabaseBlockedError):
                    raise
                postpone = partial(self._postpone, now=now, tenant=tenant, reason=error_text(error))
                handled += await in_transaction(self._database, postpone)
        return handled

    async def _postpone(self, tx: Transaction, now: int, tenant: str, reason: str) -> int:
        """Postpone the oldest due cancellation of a tenant, which has failed."""
        due = await cancellations.lock_due(tx, [tenant], now)
        for each in due:
            delay = self._delays.next(each.key)
            about = {"tenant": each.key.tenant_id, "command_id": each.command_id, "seconds": delay.total_seconds()}
            log.warning("cancelling timers failed; trying it later", extra={**about, "reason": reason})
            await cancellations.save(tx, [each._replace(available_at=now + delay // timedelta(milliseconds=1))])
        return len(due)
