"""The sweep: a worker for runs that no command changes.

It ends stale jobs, evaluates runs whose evaluation was deferred, and looks for stuck jobs in runs that stay open.
A stuck job is still waiting although all jobs it needs have ended, or although it should be skipped.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum, auto
from functools import partial

from timer_service.core.due.due_rows import DueRows, DueTable
from timer_service.core.due.loop import PASS_SECONDS, Pass
from timer_service.core.intake.backlog import Backlog
from timer_service.core.intake.waiting_rows import find_tenants
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.service.slice import Parts
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError
from timer_service.runs import events, loader, rules, store
from timer_service.runs.announcer import LOOP
from timer_service.runs.draft import Draft
from timer_service.runs.loader import Loader
from timer_service.runs.messages import JobStatus
from timer_service.runs.rules import RunKey
from timer_service.runs.run import SWEEP_MS
from timer_service.runs.store import JobKey

log = logging.getLogger(__name__)

_SQL = load_sql("timer_service.runs", "sweep.sql")
_MAX_RUNS = 50
_MAX_STALE_JOBS = 500
_AGE_SHARE = 4
_RECHECK_MS = 1000
"""The delay until the broker is asked again whether the commands in the stream have been handled."""

_STALE = DueTable(
    "run_jobs", ("tenant_id", "run_id", "job_name"), ("stale_at",), ("tenant_id", "run_id", "job_name"), "stale_at > 0"
)
"""The jobs that may become stale. Only its statements have this condition, so only they use the index of tenants."""

TIMED = (
    TimedRows(
        table="runs",
        instant="sweep_at",
        # later than `_interval` allows
        is_wrong=f"sweep_at - {SWEEP_MS + SLACK_MS} > :now "
        f"AND (sweep_at - :now) * {_AGE_SHARE} - {SLACK_MS * _AGE_SHARE} > :now - created_at",
        repair="sweep_at = :now",
    ),
    TimedRows(
        table="run_jobs",
        instant="stale_at",
        # later than `stale_after_ms` and than a postponed sweep allow
        is_wrong=f"stale_at - stale_after_ms - {SLACK_MS} > :now AND stale_at - {SWEEP_MS + SLACK_MS} > :now",
        repair="stale_at = :now + stale_after_ms",
    ),
)
"""The runs and the jobs that wait for the sweep."""


class _Swept(Enum):
    """How the sweep of a run ended. A run whose sweep failed is postponed, which changes it, too."""

    CHANGED = auto()
    NOT_DUE = auto()
    LOCKED = auto()


class Sweep:
    """A worker that sweeps each due run in its own transaction."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._backlog = Backlog(parts.broker, parts.database)
        self._wake = parts.wake
        self._overdue: set[JobKey] = set()
        """Jobs to end as stale when the commands are handled that were in the stream when these jobs were found."""
        self._rows = DueRows(_STALE)
        self._last = ""
        """The tenant of the run that was swept last."""

    async def tick(self, now: int) -> Pass:
        """Sweep the due runs and the runs of stale jobs, at least one. Tenants take turns. After 2 s, the rest waits.

        A job counts as stale only after the commands that were in the stream when it was found have been handled,
        because a report of the job may be among them.
        """
        stale_jobs: dict[RunKey, set[str]] = {key: set() for key in await self._due_runs(now)}
        for key, name in await self._find_stale_jobs(now):
            stale_jobs.setdefault(key, set()).add(name)
        results = Counter[_Swept]()
        seconds = asyncio.get_running_loop().time
        until = seconds() + PASS_SECONDS
        for number, key in enumerate(_in_turns(stale_jobs, self._last)):
            if number and seconds() > until:
                return Pass(results[_Swept.CHANGED], now)
            self._last = key.tenant_id
            results[await self._sweep(key, stale_jobs[key], now)] += 1
            self._overdue.difference_update((key, name) for name in stale_jobs[key])
        swept, locked = results[_Swept.CHANGED], results[_Swept.LOCKED]
        if locked:
            log.warning("other sessions have locked runs; sweeping these later", extra={"count": locked})
        return Pass(swept, await self._next_pass_at(now, has_swept=swept > 0, has_locked=locked > 0))

    async def _next_pass_at(self, now: int, *, has_swept: bool, has_locked: bool) -> int | None:
        """Return when the next pass is due. None: never.

        It is in a second if jobs wait for the stream or runs for a lock, and if a pass has swept nothing of what is
        due: otherwise the loop would spin.
        """
        if self._overdue or has_locked:
            return now + _RECHECK_MS
        at = await self._next_at()
        is_left = at is not None and at <= now and not has_swept
        return now + _RECHECK_MS if is_left else at

    async def _find_stale_jobs(self, now: int) -> set[JobKey]:
        """Return the jobs whose `stale_at` has passed, and whose reports are all handled.

        A report may be in the stream, up to its end when the jobs were found, or among the waiting commands of the
        tenant. The jobs that were found stay in `_overdue` until then, and no further ones are looked for.
        """
        stale_at = await loader.find_values(self._database.reader, "stale_at", self._overdue)
        self._overdue = {job for job, at in stale_at.items() if at <= now}  # a report moves it, an end removes it
        if not self._overdue:
            self._overdue = await self._next_overdue(now)
            await self._backlog.begin()
        if not self._overdue or not await self._backlog.is_read():
            return set()
        waiting = await find_tenants(self._database.reader, (key.tenant_id for key, _ in self._overdue))
        return {job for job in self._overdue if job[0].tenant_id not in waiting}

    async def _next_overdue(self, now: int) -> set[JobKey]:
        """Return the next jobs whose `stale_at` has passed: an equal share of each tenant, its oldest ones."""
        reader = self._database.reader
        tenants, _ = await self._rows.turns.next_due(reader, now, _MAX_STALE_JOBS)
        rows = await self._rows.find(reader, tenants, now, _MAX_STALE_JOBS // max(len(tenants), 1))
        return set(map(store.job_key, rows))

    async def _due_runs(self, now: int) -> list[RunKey]:
        rows = await self._database.reader.fetch(_SQL["due_runs"], {"now": now, "limit": _MAX_RUNS})
        return [store.run_key(row) for row in rows]

    async def _next_at(self) -> int | None:
        """Return when the next run is due or the next job is stale, or None."""
        found = [(await self._database.reader.fetch(_SQL[name]))[0]["at"] for name in ("next_sweep", "next_stale")]
        return min((at for at in found if at is not None), default=None)

    async def _sweep(self, key: RunKey, stale: Collection[str], now: int) -> _Swept:
        """Sweep a run, or postpone it if that fails."""
        try:
            is_changed, added = await in_transaction(self._database, partial(_sweep_run, key=key, stale=stale, now=now))
        except DatabaseBlockedError:
            return _Swept.LOCKED
        except DatabaseUnavailableError:
            raise
        except Exception:
            log.exception("sweep of a run failed", extra={"tenant": key.tenant_id, "run_id": key.run_id})
            await in_transaction(self._database, partial(_postpone, key=key, at=now + SWEEP_MS))
            return _Swept.CHANGED
        if added:
            self._wake("outbox", now)
            self._wake(LOOP, now)
        return _Swept.CHANGED if is_changed else _Swept.NOT_DUE


def _in_turns(due: Iterable[RunKey], after: str) -> list[RunKey]:
    """Return runs in an order in which tenants take turns, beginning with the next tenant `after` one."""
    counts = Counter[str]()
    turns: list[tuple[int, bool, RunKey]] = []
    for key in due:
        is_later_in_turn = key.tenant_id <= after
        turns.append((counts[key.tenant_id], is_later_in_turn, key))
        counts[key.tenant_id] += 1
    return [key for *_, key in sorted(turns)]


async def _sweep_run(tx: Transaction, *, key: RunKey, stale: Collection[str], now: int) -> tuple[bool, int]:
    """Lock and sweep a run. Return whether this changed it, and the number of the events of the changes.

    If the run is due, all of it is evaluated. Otherwise only its stale jobs end.
    """
    await tx.wait_briefly()
    run = (await loader.lock_runs(tx, [key])).get(key)
    if run is None or run.sweep_at is None:
        return False, 0
    loaded = Loader(tx, {key: run})
    is_whole = run.sweep_at <= now
    if is_whole:
        await loaded.read_whole_runs([key])
    else:
        await loaded.read_jobs({key: stale})
        await loaded.read_affected_jobs({}, {key: stale})
    before = loaded.states()
    draft = Draft(before[key], now, evaluating=True)
    stuck: list[str] = []
    if is_whole:
        released = draft.repair()
        stuck = released if run.evaluated else []  # after a deferred evaluation, waiting jobs are expected
        draft.run = draft.run._replace(sweep_at=now + _interval(now - run.created_at))
    _end_stale(draft, stale)
    if stuck:
        log.error("stuck jobs released", extra={"tenant": key.tenant_id, "run_id": key.run_id, "count": len(stuck)})
    after = {key: draft.finish()}
    await store.save(tx, before, after)
    return after != before, await events.add(tx, before, after, now, {key: stuck})


def _interval(age_ms: int) -> int:
    """Return the time until the next regular sweep. It grows with the age of the run, so that old runs cost little."""
    return max(SWEEP_MS, age_ms // _AGE_SHARE)


def _end_stale(draft: Draft, stale: Collection[str]) -> None:
    """End those of the `stale` jobs that are still stale: a report may have come since they were found."""
    overdue = [draft.jobs[name] for name in sorted(stale) if name in draft.jobs]
    ended = [job for job in overdue if job.stale_at is not None and job.stale_at <= draft.now]
    for job in ended:
        draft.set_job(rules.end(job, JobStatus.TIMED_OUT_STALE, draft.now))
    if ended:
        draft.evaluate([job.name for job in ended], caused_by=None)


async def _postpone(tx: Transaction, *, key: RunKey, at: int) -> None:
    """Let the sweep of a run, and of its stale jobs, wait until `at`."""
    await tx.execute(_SQL["postpone_run"], {**key._asdict(), "at": at})
    await tx.execute(_SQL["postpone_stale"], {**key._asdict(), "at": at})
