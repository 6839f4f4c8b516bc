"""The sweep: a worker for runs that no command changes.

It ends stale jobs, evaluates runs whose evaluation was deferred, and looks for stuck jobs in runs that stay open.
A stuck job is still waiting although all jobs it needs have ended, or although it should be skipped.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from timer_service.core.due.due_rows import DueRows, DueTable
from timer_service.core.due.loop import PASS_SECONDS, Pass
from timer_service.core.intake.backlog import Backlog
from timer_service.core.intake.waiting_rows import find_tenants
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.service.slice import Parts
from timer_service.core.values.errors import DatabaseBlockedError, DatabaseUnavailableError
from timer_service.runs import events, loader, rules, store
from timer_service.runs.announcer import LOOP
from timer_service.runs.draft import Draft
from timer_service.runs.loader import Loader
from timer_service.runs.messages import JobStatus, RunStatus
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


class Sweep:
    """A worker that sweeps each due run in its own transaction, ordered by `sweep_at`."""

    def __init__(self, parts: Parts) -> None:
        self._database = parts.database
        self._backlog = Backlog(parts.broker, parts.database)
        self._wake = parts.wake
        self._overdue: set[JobKey] = set()
        """Jobs whose `stale_at` has passed. Their reports may be among the commands that are not handled yet."""
        self._rows = DueRows(_STALE)
        self._left: dict[RunKey, list[str]] = {}
        """The runs for which the last pass had no time, with their stale jobs."""

    async def tick(self, now: int) -> Pass:
        """Sweep the due runs and the runs of stale jobs, at least one. Tenants take turns. After 2 s, the rest waits.

        A job counts as stale only after the commands that were in the stream when it was found have been handled,
        because a report of the job may be among them.
        """
        left, self._left = self._left, {}
        due: defaultdict[RunKey, list[str]] = defaultdict(list, left)
        due |= {key: [] for key in await self._due_runs(now) if key not in left}
        for key, name in await self._stale_jobs(now, {(key, name) for key, names in left.items() for name in names}):
            due[key].append(name)
        swept, locked = await self._sweep_runs(_in_turns(due), now)
        if self._left:
            return Pass(swept, now)
        if self._overdue or locked:
            return Pass(swept, now + _RECHECK_MS)
        at = await self._next_at()
        is_left = at is not None and at <= now and not swept  # what is due is not found, or cannot be written
        return Pass(swept, now + _RECHECK_MS if is_left else at)

    async def _sweep_runs(self, due: Mapping[RunKey, list[str]], now: int) -> tuple[int, int]:
        """Sweep runs until the time of the pass is up, at least one. Return how many, and how many were locked."""
        seconds = asyncio.get_running_loop().time
        until = seconds() + PASS_SECONDS
        swept = locked = 0
        for number, (key, names) in enumerate(due.items()):
            if number and seconds() > until:
                self._left = dict(list(due.items())[number:])
                break
            is_swept = await self._sweep(key, names, now)
            swept += is_swept is True
            locked += is_swept is None
        if locked:
            log.warning("other sessions have locked runs; sweeping these later", extra={"count": locked})
        return swept, locked

    async def _stale_jobs(self, now: int, left: Collection[JobKey]) -> set[JobKey]:
        """Return the jobs whose `stale_at` has passed and of which no unhandled report can be in the stream.

        Of the jobs in `left`, this is known.
        """
        self._overdue = await self._still_stale(self._overdue, now)
        restart = not self._overdue
        if restart and len(left) < 2 * _MAX_STALE_JOBS:
            self._overdue = await self._next_overdue(now) - set(left)
        if restart:
            await self._backlog.begin()
        if not self._overdue or not await self._backlog.is_read():
            return set()
        waiting = await find_tenants(self._database.reader, (key.tenant_id for key, _ in self._overdue))
        stale = {job for job in self._overdue if job[0].tenant_id not in waiting}
        self._overdue -= stale
        return stale

    async def _still_stale(self, jobs: Collection[JobKey], now: int) -> set[JobKey]:
        rows = await self._database.reader.fetch_each(_SQL["stale_at"], [store.job_parameters(each) for each in jobs])
        return _jobs(row for row in rows if row["stale_at"] is not None and row["stale_at"] <= now)

    async def _next_overdue(self, now: int) -> set[JobKey]:
        """Return the next jobs whose `stale_at` has passed: an equal share of each tenant, its oldest ones."""
        reader = self._database.reader
        tenants, _ = await self._rows.turns.next_due(reader, now, _MAX_STALE_JOBS)
        return _jobs(await self._rows.find(reader, tenants, now, _MAX_STALE_JOBS // max(len(tenants), 1)))

    async def _due_runs(self, now: int) -> list[RunKey]:
        rows = await self._database.reader.fetch(_SQL["due_runs"], {"now": now, "limit": _MAX_RUNS})
        return [store.run_key(row) for row in rows]

    async def _next_at(self) -> int | None:
        found = [(await self._database.reader.fetch(_SQL[name]))[0]["at"] for name in ("next_sweep", "next_stale")]
        return min((at for at in found if at is not None), default=None)

    async def _sweep(self, key: RunKey, stale: Collection[str], now: int) -> bool | None:
        """Sweep a run, or postpone it if that fails. Return whether it changed; None: it is locked."""
        try:
            repair = await _needs_repair(self._database.reader, key, now)
            sweep = partial(_sweep_locked, key=key, stale=stale, repair=repair, now=now)
            is_changed, added = await in_transaction(self._database, sweep)
        except DatabaseBlockedError:
            return None
        except DatabaseUnavailableError:
            raise
        except Exception:
            log.exception("sweep of a run failed", extra={"tenant": key.tenant_id, "run_id": key.run_id})
            await in_transaction(self._database, partial(_postpone, key=key, at=now + SWEEP_MS))
        else:
            if added:
                for loop in ("outbox", LOOP):
                    self._wake(loop, now)
            return is_changed
        return True


def _jobs(rows: Iterable[Row]) -> set[JobKey]:
    return {(store.run_key(row), str(row["job_name"])) for row in rows}


def _in_turns(due: Mapping[RunKey, list[str]]) -> dict[RunKey, list[str]]:
    """Return runs in an order in which tenants take turns. The runs of each tenant keep their order."""
    rounds = Counter[str]()
    number: dict[RunKey, int] = {}
    for key in due:
        number[key] = rounds[key.tenant_id]
        rounds[key.tenant_id] += 1
    return {key: due[key] for key in sorted(due, key=number.__getitem__)}


async def _needs_repair(reader: Reader, key: RunKey, now: int) -> bool:
    """Return whether a due run would change if it were evaluated as a whole. Reads without a lock."""
    run = (await loader.find_runs(reader, [key])).get(key)
    if run is None or run.sweep_at is None or run.sweep_at > now:
        return False
    loaded = Loader(reader, {key: run})
    await loaded.read_whole_runs([key])
    before = loaded.states()[key]
    draft = Draft(before, now, evaluating=True)
    draft.repair()
    return draft.finish() != before


async def _sweep_locked(
    tx: Transaction, *, key: RunKey, stale: Collection[str], repair: bool, now: int
) -> tuple[bool, int]:
    """Lock and sweep one run. Return whether it has changed, and the number of events that were added to the outbox."""
    await tx.wait_briefly()
    run = (await loader.lock_runs(tx, [key])).get(key)
    if run is None or run.status is not RunStatus.RUNNING:
        return False, 0
    loaded = Loader(tx, {key: run})
    repair = repair or not run.evaluated  # an evaluation may have been deferred since the check without a lock
    if repair:
        await loaded.read_whole_runs([key])
    else:
        overdue = [(key, name) for name in stale]
        await loaded.read_jobs(overdue)
        await loaded.read_affected_jobs((), overdue)
    before = loaded.states()
    draft = Draft(before[key], now, evaluating=True)
    repaired = draft.repair() if repair else []
    if run.sweep_at is not None and run.sweep_at <= now:
        draft.run = draft.run._replace(sweep_at=now + _interval(now - run.created_at))
    _end_stale(draft, stale)
    stuck = repaired if run.evaluated else []  # after a deferred evaluation, waiting jobs are expected
    if stuck:
        log.error("stuck jobs released", extra={"tenant": key.tenant_id, "run_id": key.run_id, "count": len(stuck)})
    after = {key: draft.finish()}
    await store.save(tx, before, after)
    return after != before, await events.add(tx, before, after, now, {key: stuck})


def _interval(age_ms: int) -> int:
    """Return the time until the next regular sweep. It grows with the age of the run, so that old runs cost little."""
    return max(SWEEP_MS, age_ms // _AGE_SHARE)


def _end_stale(draft: Draft, stale: Collection[str]) -> None:
    overdue = [draft.jobs[name] for name in sorted(stale) if name in draft.jobs]
    ended = [job for job in overdue if job.stale_at is not None and job.stale_at <= draft.now]
    for job in ended:
        draft.set_job(rules.end(job, JobStatus.TIMED_OUT_STALE, draft.now))
    if ended:
        draft.evaluate([job.name for job in ended])


async def _postpone(tx: Transaction, *, key: RunKey, at: int) -> None:
    await tx.execute(_SQL["postpone_run"], {**key._asdict(), "at": at})
    await tx.execute(_SQL["postpone_stale"], {**key._asdict(), "at": at})
