"""Looks after runs that no command moves: jobs nobody hears of, jobs that wait in vain, and what was left while off."""

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
from timer_service.runs import rules, store
from timer_service.runs.batch import SWEEP_MS, Work
from timer_service.runs.graph import Graph
from timer_service.runs.loading import load_consequences
from timer_service.runs.messages import JobStatus, RunStatus
from timer_service.runs.rules import RunKey
from timer_service.runs.writing import write

log = logging.getLogger(__name__)

_SQL = load_sql("timer_service.runs", "sweep.sql")
_RUNS = 50
_STALE_JOBS = 500


class Sweep:
    """A worker whose ticks look after some runs each, those first that have waited longest, in a transaction each."""

    def __init__(self, parts: WorkerParts) -> None:
        self._database = parts.database
        self._wake = partial(parts.wake, "outbox")

    async def tick(self, now: int) -> Pass:
        """Look after the runs that are due."""
        due = await self._due(now)
        for key, stale in due.items():
            try:
                doubtful = await _is_doubtful(self._database.reader, key, now)
                attend = partial(_attend, key=key, stale=stale, doubtful=doubtful, now=now)
                events = await in_transaction(self._database, attend)
            except DatabaseUnavailableError:
                raise
            except Exception:
                log.exception("run can't be swept", extra={"run_id": key.run_id})
                await in_transaction(self._database, partial(_postpone, key=key, at=now + SWEEP_MS))
            else:
                if events:
                    self._wake(now)
        return Pass(len(due), await self._next_at())

    async def _next_at(self) -> int | None:
        found = [(await self._database.reader.fetch(_SQL[name]))[0]["at"] for name in ("next_sweep", "next_stale")]
        return min((at for at in found if at is not None), default=None)

    async def _due(self, now: int) -> dict[RunKey, list[str]]:
        """Return the runs to look after, each with those of its jobs that nothing has been heard of."""
        due: dict[RunKey, list[str]] = defaultdict(list)
        for row in await self._database.reader.fetch(_SQL["stale"], {"now": now, "limit": _STALE_JOBS}):
            due[RunKey(row["tenant_id"], row["run_id"])].append(row["job_name"])
        for row in await self._database.reader.fetch(_SQL["to_sweep"], {"now": now, "limit": _RUNS}):
            due.setdefault(RunKey(row["tenant_id"], row["run_id"]), [])
        return due


async def _is_doubtful(reader: Reader, key: RunKey, now: int) -> bool:
    """Tell whether anything would come of evaluating a run that is due anew: found out beside the writers."""
    run = await store.find_run(reader, key)
    if run is None or run.sweep_at is None or run.sweep_at > now:
        return False
    graph = Graph(run)
    await store.load_whole(reader, {key: graph})
    graph.evaluate_all(now, None)
    return bool(graph.changed) or graph.run != run or not run.evaluated


async def _attend(tx: Transaction, *, key: RunKey, stale: Collection[str], doubtful: bool, now: int) -> int:
    """Look after one run; return how many events there are to publish."""
    runs = await store.lock_known(tx, [key])
    if key not in runs or runs[key].status is not RunStatus.RUNNING:
        return 0
    work = Work(Graph(runs[key]))
    graphs = {key: work.graph}
    overdue = [(key, name) for name in stale]
    if doubtful:
        await store.load_whole(tx, graphs)
        _repair(work, now)
    else:
        await store.load_jobs(tx, graphs, overdue)
        await load_consequences(tx, graphs, (), overdue)
    if work.graph.run.sweep_at is not None and work.graph.run.sweep_at <= now:
        work.graph.run = work.graph.run._replace(sweep_at=now + SWEEP_MS)
    _end_stale(work.graph, stale, now)
    return await write(tx, {key: work}, runs, now)


def _repair(work: Work, now: int) -> None:
    """Evaluate a whole run; that anything comes of it is news, unless it was known to be unevaluated."""
    graph = work.graph
    graph.evaluate_all(now, None)
    if graph.run.evaluated and (graph.ready or graph.skipped):
        work.stuck = sorted(graph.ready.keys() | graph.skipped.keys())
        log.error("jobs waited in vain", extra={"run_id": graph.run.key.run_id, "count": len(work.stuck)})
    graph.run = graph.run._replace(evaluated=True)


def _end_stale(graph: Graph, stale: Collection[str], now: int) -> None:
    overdue = [graph.jobs[name] for name in sorted(stale)]
    ended = [job for job in overdue if job.stale_at is not None and job.stale_at <= now]
    for job in ended:
        graph.put(rules.end(job, JobStatus.TIMED_OUT_STALE, now))
    graph.evaluate([job.name for job in ended], now, None)


async def _postpone(tx: Transaction, *, key: RunKey, at: int) -> None:
    await tx.execute(_SQL["postpone_run"], {**key._asdict(), "at": at})
    await tx.execute(_SQL["postpone_stale"], {**key._asdict(), "at": at})
