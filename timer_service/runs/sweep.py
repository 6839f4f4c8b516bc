"""The sweep: looks after runs that no command moves.

It ends jobs that were not reported for too long, draws the consequences that were left to it, and looks for jobs that
wait wrongly in each run that is open for long.
"""

import logging
from collections import defaultdict
from collections.abc import Collection
from functools import partial

from timer_service.core.database import Reader, Transaction
from timer_service.core.errors import DatabaseUnavailableError
from timer_service.core.loop import Pass
from timer_service.core.slice import WorkerParts
from timer_service.core.sql import load_sql
from timer_service.core.transactions import in_transaction
from timer_service.runs import events, loader, rules, store
from timer_service.runs.draft import Draft
from timer_service.runs.loader import Loader
from timer_service.runs.messages import JobStatus, RunStatus
from timer_service.runs.rules import RunKey
from timer_service.runs.run import SWEEP_MS
from timer_service.runs.store import JobKey

log = logging.getLogger(__name__)

_SQL = load_sql("timer_service.runs", "sweep.sql")
_RUNS = 50
_STALE_JOBS = 500
_ASK_AGAIN_MS = 1000
"""How soon to ask again whether waiting commands have been handled."""


class Sweep:
    """A worker whose ticks look after some runs, each in a transaction of its own, those first that are due longest."""

    def __init__(self, parts: WorkerParts) -> None:
        self._database = parts.database
        self._broker = parts.broker
        self._wake = partial(parts.wake, "outbox")
        self._overdue: set[JobKey] = set()
        """The stale jobs whose reports may be among the commands that the broker was asked about."""

    async def tick(self, now: int) -> Pass:
        """Look after the runs that are due.

        A job is stale only once the commands that waited when it was found are handled: its report may be among them.
        """
        due: defaultdict[RunKey, list[str]] = defaultdict(list, {key: [] for key in await self._due(now)})
        for key, name in await self._stale_jobs(now):
            due[key].append(name)
        for key, names in due.items():
            await self._look_after(key, names, now)
        return Pass(len(due), now + _ASK_AGAIN_MS if self._overdue else await self._next_at())

    async def _stale_jobs(self, now: int) -> set[JobKey]:
        """Return jobs that were not reported for too long, and of which no report waits."""
        rows = await self._database.reader.fetch(_SQL["stale"], {"now": now, "limit": _STALE_JOBS})
        found = {(store.run_key(row), str(row["job_name"])) for row in rows}
        afresh = self._overdue.isdisjoint(found)
        self._overdue = found if afresh else self._overdue & found
        if not found or not await self._broker.caught_up(restart=afresh):
            return set()
        stale, self._overdue = self._overdue, found - self._overdue
        return stale

    async def _due(self, now: int) -> list[RunKey]:
        """Return the runs that are due to be looked at."""
        rows = await self._database.reader.fetch(_SQL["to_sweep"], {"now": now, "limit": _RUNS})
        return [store.run_key(row) for row in rows]

    async def _next_at(self) -> int | None:
        found = [(await self._database.reader.fetch(_SQL[name]))[0]["at"] for name in ("next_sweep", "next_stale")]
        return min((at for at in found if at is not None), default=None)

    async def _look_after(self, key: RunKey, stale: Collection[str], now: int) -> None:
        try:
            doubtful = await _is_doubtful(self._database.reader, key, now)
            attend = partial(_attend, key=key, stale=stale, doubtful=doubtful, now=now)
            added = await in_transaction(self._database, attend)
        except DatabaseUnavailableError:
            raise
        except Exception:
            log.exception("run can't be swept", extra={"run_id": key.run_id})
            await in_transaction(self._database, partial(_postpone, key=key, at=now + SWEEP_MS))
        else:
            if added:
                self._wake(now)


async def _is_doubtful(reader: Reader, key: RunKey, now: int) -> bool:
    """Return whether a run that is due would change if it were evaluated as a whole. Found out beside the writers."""
    run = await loader.find(reader, key)
    if run is None or run.sweep_at is None or run.sweep_at > now:
        return False
    reading = Loader(reader, {key: run})
    await reading.read_whole([key])
    before = reading.states()[key]
    draft = Draft(before, now, evaluating=True)
    draft.repair()
    return draft.finish() != before


async def _attend(tx: Transaction, *, key: RunKey, stale: Collection[str], doubtful: bool, now: int) -> int:
    """Look after one run; return how many events there are to publish."""
    run = await loader.lock(tx, key)
    if run is None or run.status is not RunStatus.RUNNING:
        return 0
    reading = Loader(tx, {key: run})
    doubtful = doubtful or not run.evaluated  # it may have become so since the look
    if doubtful:
        await reading.read_whole([key])
    else:
        overdue = [(key, name) for name in stale]
        await reading.read_jobs(overdue)
        await reading.read_consequences((), overdue)
    before = reading.states()
    draft = Draft(before[key], now, evaluating=True)
    moved = draft.repair() if doubtful else []
    if run.sweep_at is not None and run.sweep_at <= now:
        draft.run = draft.run._replace(sweep_at=now + _interval(now - run.created_at))
    _end_stale(draft, stale)
    stuck = moved if run.evaluated else []  # else consequences had been left to the sweep
    if stuck:
        log.error("jobs waited wrongly", extra={"run_id": key.run_id, "count": len(stuck)})
    after = {key: draft.finish()}
    await store.save(tx, before, after)
    return await events.add(tx, before, after, now, {key: stuck})


def _interval(age_ms: int) -> int:
    """Return how long to leave a run alone: longer with its age, so that old open runs cost next to nothing."""
    return max(SWEEP_MS, age_ms // 4)


def _end_stale(draft: Draft, stale: Collection[str]) -> None:
    overdue = [draft.jobs[name] for name in sorted(stale) if name in draft.jobs]
    ended = [job for job in overdue if job.stale_at is not None and job.stale_at <= draft.now]
    for job in ended:
        draft.put(rules.end(job, JobStatus.TIMED_OUT_STALE, draft.now))
    if ended:
        draft.follow([job.name for job in ended])


async def _postpone(tx: Transaction, *, key: RunKey, at: int) -> None:
    await tx.execute(_SQL["postpone_run"], {**key._asdict(), "at": at})
    await tx.execute(_SQL["postpone_stale"], {**key._asdict(), "at": at})
