"""The announcer: a worker that adds the events of deferred announcements to the outbox.

Tenants take turns. Each transaction adds the events of one tenant, of about 512 KiB. An announcement that fails waits.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from timer_service.core.due.due_rows import DueRows
from timer_service.core.due.isolate import Failed, Retries, isolate_in_transactions
from timer_service.core.due.loop import PASS_SECONDS, Pass
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.runs import announcements, events
from timer_service.runs.announcements import AnnouncementKey
from timer_service.runs.store import JobKey

LOOP = "announcements"
"""Its loop."""
_TENANTS = 100
_ROWS = 100
"""How many announcements one transaction looks at."""


class Announcer:
    """A worker that announces the oldest jobs of each tenant, in one transaction for each tenant and pass."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "outbox")
        self._rows = DueRows(announcements.ANNOUNCEMENTS)
        self._retries = Retries[JobKey](announcements.COUNTED.table)

    async def tick(self, now: int) -> Pass:
        """Announce a portion of the jobs of each tenant that has some, as far as there is time.

        The next pass begins with the first tenant that had no turn. If nothing could be done, polling is soon enough.
        """
        at = await self._rows.next_available(self._database.reader)
        if at is None or at > now:
            return Pass(0, at)
        tenants, _ = await self._rows.turns.next_due(self._database.reader, now, _TENANTS)
        seconds = asyncio.get_running_loop().time
        until = seconds() + PASS_SECONDS
        done = 0
        for number, tenant in enumerate(tenants):
            if number and seconds() > until:
                self._rows.turns.continue_after(tenants[number - 1])
                return Pass(done, now)
            done += await self._announce_portion(tenant, now)
        return Pass(done, now if done else None)

    async def _announce_portion(self, tenant: str, now: int) -> int:
        """Announce a portion of a tenant. Return how many announcements are done or were postponed after a failure."""
        due = await self._rows.find(self._database.reader, [tenant], now, _ROWS)
        keys = [AnnouncementKey.of(row) for row in due]
        counts: list[int] = []
        isolated = await isolate_in_transactions(self._database, keys, partial(self._announce, now=now), counts.append)
        if sum(counts):
            self._wake(now)
        if isolated.failed:
            retries = self._retries.of([Failed(key.job, error) for key, error in isolated.failed], now)
            later = {key: retries[key.job] for key, _ in isolated.failed}
            await in_transaction(self._database, partial(self._rows.postpone, retries=later))
        return sum(counts) + len(isolated.failed)

    async def _announce(self, tx: Transaction, keys: Sequence[AnnouncementKey], now: int) -> int:
        """Add the events of announcements, as many as have room. Delete these announcements, and return how many.

        An announcement whose job has ended since is deleted without an event.
        """
        rows = await self._rows.select_keys(tx, keys, now)
        valid = [each for each in await announcements.read(tx, rows) if each is not None]
        count = await events.add_of_jobs(tx, valid, now)
        left = {each.key for each in valid[count:]}
        return await announcements.delete(tx, [row for row in rows if AnnouncementKey.of(row).job not in left])
