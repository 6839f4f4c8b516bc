"""The announcer: a worker that adds the events of deferred announcements to the outbox.

Tenants take turns. Each transaction adds the events of one tenant, of about 512 KiB.
"""

import asyncio
import logging
from datetime import timedelta
from functools import partial
from typing import Any

from timer_service.core.due.loop import PASS_SECONDS, Pass
from timer_service.core.due.tenant_turns import TenantTurns
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.slice import Parts
from timer_service.core.values.delays import LONGEST, Delays
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError
from timer_service.runs import announcements, events, store
from timer_service.runs.store import JobKey

log = logging.getLogger(__name__)

LOOP = "announcements"
"""Its loop."""
_SQL = load_sql("timer_service.runs", "announcements.sql")
_TENANTS = 100
_ROWS = 100
"""How many announcements one transaction looks at."""
_MOST_DOUBLED = 8
"""How many times the number of jobs that may fail in a pass is doubled. 256 take two transactions each."""
_EVER = 2**62
"""No announcement is later."""


class Announcer:
    """A worker that announces the oldest jobs of each tenant, in one transaction for each tenant and pass."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "outbox")
        self._turns = TenantTurns(_SQL["tenants"])
        self._delays = Delays()
        self._failed_until: dict[str, int] = {}
        """When to try the tenants again whose transaction failed."""

    async def tick(self, now: int) -> Pass:
        """Announce a portion of the jobs of each tenant that has some, as far as there is time."""
        latest = now + LONGEST // timedelta(milliseconds=1)  # a later instant is from a clock that was ahead
        self._failed_until = {tenant: at for tenant, at in self._failed_until.items() if now < at <= latest}
        tenants = await self._turns.next_due(self._database.reader, _EVER, _TENANTS, self._failed_until)
        seconds = asyncio.get_running_loop().time
        until = seconds() + PASS_SECONDS
        done = 0
        for number, tenant in enumerate(tenants):
            if number and seconds() > until:
                self._turns.continue_after(tenants[number - 1])
                return Pass(done, now)
            if added := await self._announce(tenant, now, until):
                done += added
                self._wake(now)
        return Pass(done, now if done else min(self._failed_until.values(), default=None))

    async def _announce(self, tenant: str, now: int, until: float) -> int:
        """Announce a portion of a tenant. Return how many announcements are done."""
        try:
            done = await self._announce_portion(tenant, now, until)
        except DatabaseBlockedError as error:
            about = self._delay(tenant, now)
            log.warning("announcing jobs blocked; trying it later", extra={**about, "reason": str(error)})
        except DatabaseUnavailableError:
            raise
        except Exception:
            log.exception("announcing jobs failed; trying it later", extra=self._delay(tenant, now))
        else:
            self._delays.forget(tenant)
            return done
        return 0

    async def _announce_portion(self, tenant: str, now: int, until: float) -> int:
        """Announce a portion of a tenant, or a smaller one if that fails. A job that fails alone comes behind.

        One job may fail in a pass, and twice as many in each pass after one in which nothing was announced. A damaged
        row can concern 10,000 jobs: with one in a pass, the jobs of other runs would wait for days. After the time
        `until` of the event loop, no further one is tried: on a slow disk, 256 would take most of a minute.
        """
        seconds = asyncio.get_running_loop().time
        limit = _ROWS
        tried = set[JobKey]()
        left = 2 ** min(self._delays.count(tenant), _MOST_DOUBLED)
        while True:
            try:
                return await in_transaction(self._database, partial(_announce, tenant=tenant, now=now, limit=limit))
            except DatabaseUnavailableError:
                raise
            except Exception as error:
                if limit > 1:
                    limit //= 2
                    continue
                postpone = partial(announcements.postpone, tenant=tenant, now=now)
                rows = await in_transaction(self._database, postpone)
                left -= 1
                keys = {(store.run_key(row), row["job_name"]) for row in rows}
                have_all_failed = not tried.isdisjoint(keys)
                tried |= keys
                if left == 0 or have_all_failed or seconds() > until:
                    for row in rows:
                        error.add_note(f"run {row['run_id']}, job {row['job_name']}")
                    raise
                for row in rows:
                    about = {"tenant": tenant, "run_id": row["run_id"], "job": row["job_name"]}
                    log.warning("announcing a job failed; trying it later", extra={**about, "reason": str(error)})

    def _delay(self, tenant: str, now: int) -> dict[str, Any]:
        """Let a tenant wait whose transaction failed. Return what to log about it."""
        delay = self._delays.next(tenant)
        self._failed_until[tenant] = now + delay // timedelta(milliseconds=1)
        return {"tenant": tenant, "seconds": delay.total_seconds()}


async def _announce(tx: Transaction, *, tenant: str, now: int, limit: int) -> int:
    """Add the events of the oldest announcements of a tenant, and delete these. Return how many."""
    rows = await announcements.lock_oldest(tx, tenant, limit)
    found = await announcements.read(tx, rows)
    valid = [each for each in found if each is not None]
    count = await events.add_of_jobs(tx, valid, now)
    left = {each.key for each in valid[count:]}
    done = [row for row in rows if (store.run_key(row), row["job_name"]) not in left]
    return await announcements.delete(tx, done)
