"""The worker that cancels the timers of a CancelTimers, page by page, and then announces how many it has cancelled."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from timer_service.core import outbox
from timer_service.core.database import Transaction
from timer_service.core.delays import Delays
from timer_service.core.error_text import error_text
from timer_service.core.errors import DatabaseBlockedError, DatabaseUnavailableError
from timer_service.core.loop import Pass
from timer_service.core.slice import Parts
from timer_service.core.transactions import in_transaction
from timer_service.timers import cancellation_store as store
from timer_service.timers.cancellations import Cancellation

log = logging.getLogger(__name__)

_TIMERS = 1000
"""How many timers one transaction reads, shared equally by the due cancellations. On SQLite it takes 10 to 20 ms, so
commands and claims hardly wait."""
_LEAST_TIMERS = 2
"""A page repeats the last timer of the page before. With room for only one, a pass would not end."""
_CANCELLATIONS = 100
"""How many cancellations one transaction handles, so that many small ones do not delay those of other tenants."""
_LOCKED_PAUSE_MS = 50
"""How long to wait for cancellations that another instance has locked."""


class CancellationWorker:
    """A worker that handles the next pages of the due cancellations in each tick.

    Other instances may write the same database. One of them may be about to commit the timer of an older ScheduleTimer,
    which did not see the cancellation, and which the pass does not see. So if the database is shared, there is a second
    pass a minute later.
    """

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "outbox")
        self._passes = 1 if parts.database.exclusive else 2
        self._delays = Delays()

    async def tick(self, now: int) -> Pass:
        """Read the next pages, and cancel their timers. Return how many cancellations had a page."""
        at = await store.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(0, at)
        try:
            handled = await self._handle_in_transaction(now, _CANCELLATIONS)
        except DatabaseUnavailableError as error:
            if not isinstance(error, DatabaseBlockedError):
                raise
            handled = await self._handle_each(now)
        except Exception:
            log.exception("cancelling timers failed; handling each cancellation alone")
            handled = await self._handle_each(now)
        return Pass(handled, now if handled else now + _LOCKED_PAUSE_MS)

    async def _handle_in_transaction(self, now: int, limit: int) -> int:
        handled, finished = await in_transaction(self._database, partial(self._handle, now=now, limit=limit))
        if finished:
            self._wake(now)
        return handled

    async def _handle(self, tx: Transaction, now: int, limit: int) -> tuple[int, int]:
        """Handle the next pages of due cancellations. Return how many had a page, and how many are finished."""
        due = await store.lock_due(tx, now, limit)
        share = max(_TIMERS // max(len(due), 1), _LEAST_TIMERS)
        after: list[Cancellation] = []
        locked_to = ("", "")
        for each in sorted(due, key=_start):
            if _start(each) <= locked_to:
                continue  # its page would lock rows out of order
            calls = await store.read_page(tx, each, share)
            cancelled = await store.cancel_page(tx, each, calls, now)
            after.append(each.after_page(calls, cancelled, share, self._passes, now))
            if calls:
                locked_to = (each.key.tenant_id, calls[-1])
        await store.save(tx, after)
        finished = [each for each in after if each.finished_at is not None]
        await outbox.add(tx, [each.event(now) for each in finished], now)
        return len(after), len(finished)

    async def _handle_each(self, now: int) -> int:
        """Handle each due cancellation in a transaction of its own. One that fails waits, and holds no other."""
        handled = 0
        for _ in range(_CANCELLATIONS):
            try:
                done = await self._handle_in_transaction(now, 1)
            except Exception as error:
                if isinstance(error, DatabaseUnavailableError) and not isinstance(error, DatabaseBlockedError):
                    raise
                done = await in_transaction(self._database, partial(self._postpone, now=now, reason=error_text(error)))
            if not done:
                break
            handled += done
        return handled

    async def _postpone(self, tx: Transaction, now: int, reason: str) -> int:
        """Postpone the next due cancellation, which has failed."""
        due: Sequence[Cancellation] = await store.lock_due(tx, now, 1)
        for each in due:
            delay = self._delays.next(each.key)
            about = {"tenant": each.key.tenant_id, "command_id": each.command_id, "seconds": delay.total_seconds()}
            log.warning("cancelling timers failed; trying it later", extra={**about, "reason": reason})
            await store.save(tx, [each._replace(available_at=now + delay // timedelta(milliseconds=1))])
        return len(due)


def _start(cancellation: Cancellation) -> tuple[str, str]:
    """Return the key of the first timer that the next page may have."""
    return cancellation.key.tenant_id, cancellation.next_call_id
