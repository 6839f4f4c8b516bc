"""The worker that cancels the timers of a CancelTimers, page by page, and then announces how many it has cancelled."""

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.loop import Pass
from timer_service.core.events import outbox
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.timers import cancellations
from timer_service.timers.cancellations import Cancellation, read_cancellation

MOST_TIMERS = 1000
"""How many timers one transaction reads, shared equally by the tenants. On SQLite it takes 10 to 20 ms."""
_LEAST_TIMERS = 2
"""A page repeats the last timer of the page before. With room for only one, a pass would not end."""
MOST_TENANTS = 20
"""How many tenants one transaction serves, with one cancellation of each. So each page has 50 timers or more."""
_key_of = itemgetter(*cancellations.CANCELLATIONS.key)
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
        self._rows = DueRows(cancellations.CANCELLATIONS)
        self._retries = Retries[tuple[Any, ...]](cancellations.TABLE)

    async def tick(self, now: int) -> Pass:
        """Read the next pages, and cancel their timers. Return how many cancellations had a page."""
        at = await self._rows.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(0, at)
        tenants, _ = await self._rows.turns.next_due(self._database.reader, now, MOST_TENANTS)
        counts: list[int] = []
        isolated = await isolate_in_transactions(self._database, tenants, partial(self._handle, now=now), counts.append)
        if isolated.failed:
            postpone = partial(self._postpone, failed=isolated.failed, now=now)
            counts.append(await in_transaction(self._database, postpone))
        handled = sum(counts)
        return Pass(handled, now if handled else now + _LOCKED_PAUSE_MS)

    async def _handle(self, tx: Transaction, tenants: Sequence[str], now: int) -> int:
        """Handle one page of each tenant. Return how many had a page."""
        due = list(map(read_cancellation, await self._rows.lock_oldest(tx, tenants, now)))
        share = max(MOST_TIMERS // max(len(due), 1), _LEAST_TIMERS)
        unfinished: list[Cancellation] = []
        finished: list[Cancellation] = []
        for cancellation in due:
            calls = await cancellations.read_page(tx, cancellation, share)
            cancelled_count = await cancellations.cancel_page(tx, cancellation, calls, now)
            after = cancellation.after_page(calls, cancelled_count)
            if len(calls) < share:  # it was the last page
                finished.append(after)
            else:
                unfinished.append(after)
        await cancellations.save(tx, unfinished)
        await cancellations.delete(tx, finished)
        await outbox.add(tx, [each.event(now) for each in finished], now)
        if finished:
            tx.on_commit(partial(self._wake, now))
        return len(due)

    async def _postpone(self, tx: Transaction, failed: Sequence[Failed[str]], now: int) -> int:
        """Let the oldest due cancellation of each failed tenant wait, with the error. Return how many wait."""
        error_of = dict(failed)
        due = await self._rows.lock_oldest(tx, error_of, now)
        retries = self._retries.of([Failed(_key_of(row), error_of[row["tenant_id"]]) for row in due], now)
        await self._rows.postpone(tx, retries)
        return len(due)
