"""Reads the parts of runs that commands can change."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.turns import Turns
from timer_service.core.values.message import Command, Position
from timer_service.runs import rules, store
from timer_service.runs.draft import Pending, RunState
from timer_service.runs.edges import read_needed_by
from timer_service.runs.graph import JOB_OF, Edge
from timer_service.runs.messages import (
    MAX_JOBS,
    CancelRun,
    IfFailed,
    JobStatus,
    ReportJobStatus,
    ResolveGroup,
    StartRun,
)
from timer_service.runs.rules import Group, Job, Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "loader.sql")
_FIND_LOCKED = f"{_SQL['find_run']}\n/* for update */"
_IF_FAILED = {str(each): each for each in IfFailed}
_BYTES_OF_TURN = 64 * 1024
Names = Mapping[RunKey, Collection[str]]
"""Names of jobs by run."""
_MOST_JOBS = MAX_JOBS // 2
"""For more jobs of one run, all of its jobs are read."""
_MAX_LEVELS = 50
"""A cascade of skips is read level by level up to this depth. For a deeper one, four statements read the whole run."""


async def load(
    tx: Transaction, runs: Mapping[RunKey, Run], commands: Mapping[RunKey, Sequence[Command]], *, evaluating: bool
) -> dict[RunKey, RunState]:
    """Read all rows of locked runs that commands can change."""
    loader = Loader(tx, runs)
    by_type = defaultdict[type, set[RunKey]](set)
    for key, on_run in commands.items():
        for each in on_run:
            by_type[type(each.payload)].add(key)
    is_open = {key for key, run in runs.items() if run.is_open}
    started = {key for key, run in runs.items() if run.started}
    whole = (by_type[ResolveGroup] | by_type[CancelRun]) & is_open
    only_cancelled = {key for key in whole if all(isinstance(each.payload, CancelRun) for each in commands[key])}
    await loader.read_open_jobs(only_cancelled)
    await loader.read_whole_runs(whole - only_cancelled)
    resolving = by_type[ResolveGroup] & started  # before the StartRun, a ResolveGroup only waits
    await loader.read_groups(resolving - whole)
    starting = by_type[StartRun] - started  # a repeated StartRun changes nothing of what waits
    await loader.read_pending(resolving | starting | by_type[CancelRun])
    reports = [
        (key, each.payload)
        for key in by_type[ReportJobStatus] & started - whole
        for each in commands[key]
        if isinstance(each.payload, ReportJobStatus)
    ]
    await loader.read_jobs_of_reports(reports, evaluating)
    return loader.states()


async def lock_runs(tx: Transaction, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Lock and return the runs that exist. The order of the keys prevents deadlocks between instances.

    No other transaction writes these runs or their jobs until this transaction ends. No other inserts runs meanwhile:
    a transaction of the intake first moves the cursor of the log.
    """
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {run.key: run for run in map(store.read_run, rows)}


async def count_group_needs(reader: Reader, keys: Collection[RunKey]) -> dict[RunKey, dict[str, int]]:
    """Return how many jobs need each group of the runs."""
    counts: dict[RunKey, dict[str, int]] = {key: {} for key in keys}
    for row in await reader.fetch_each(_SQL["count_group_needs"], [key._asdict() for key in keys]):
        counts[RunKey(row["tenant_id"], row["run_id"])][row["group_name"]] = row["count"]
    return counts


async def find_runs(reader: Reader, keys: Iterable[RunKey]) -> dict[RunKey, Run]:
    """Return the runs that exist, without a lock."""
    rows = await reader.fetch_each(_SQL["find_run"], [key._asdict() for key in keys])
    return {run.key: run for run in map(store.read_run, rows)}


class Loader:
    """Reads runs and collects the rows."""

    def __init__(self, reader: Reader, runs: Mapping[RunKey, Run]) -> None:
        self.runs = dict(runs)
        self._reader = reader
        self._jobs: dict[RunKey, dict[str, Job]] = {key: {} for key in runs}
        self._downstream: dict[RunKey, dict[str, list[Edge]]] = {key: {} for key in runs}
        self._groups: dict[RunKey, dict[str, Group]] = {key: {} for key in runs}
        self._downstream_of_groups: dict[RunKey, dict[str, list[Edge]]] = {key: {} for key in runs}
        self._pending: dict[RunKey, dict[Position, Pending]] = {key: {} for key in runs}

    def states(self) -> dict[RunKey, RunState]:
        """Return the parts of the runs that were read."""
        return {
            key: RunState(
                run,
                self._jobs[key],
                self._downstream[key],
                self._groups[key],
                self._downstream_of_groups[key],
                self._pending[key],
            )
            for key, run in self.runs.items()
        }

    async def read_whole_runs(self, keys: Collection[RunKey]) -> None:
        """Read all jobs, needs and groups of runs."""
        named = [key._asdict() for key in keys]
        self._add_jobs(await self._reader.fetch_each(_SQL["jobs_of_run"], named))
        for key in keys:
            self._downstream[key] = {}
        self._add_edges(await self._reader.fetch_each(_SQL["edges_of_run"], named))
        await self.read_groups(keys)
        for row in await self._reader.fetch_each(_SQL["group_needs_of_run"], named):
            edge = Edge(row["group_name"], row["job_name"], _IF_FAILED[row["if_failed"]])
            self._downstream_of_groups[store.run_key(row)].setdefault(edge.upstream, []).append(edge)

    async def read_open_jobs(self, keys: Collection[RunKey]) -> None:
        """Read the jobs of runs that have not ended."""
        self._add_jobs(await self._reader.fetch_each(_SQL["open_jobs_of_run"], [key._asdict() for key in keys]))

    async def read_groups(self, keys: Collection[RunKey]) -> None:
        """Read the groups of runs."""
        for row in await self._reader.fetch_each(_SQL["groups_of_run"], [key._asdict() for key in keys]):
            self._groups[store.run_key(row)][row["group_name"]] = store.read_group(row)

    async def read_pending(self, keys: Iterable[RunKey]) -> None:
        """Read the pending commands of runs. A run can have 2,000. Other tasks run in between."""
        waiting = [key._asdict() for key in keys if self.runs[key].pending_bytes]
        turns = Turns(_BYTES_OF_TURN)
        for row in await self._reader.fetch_each(_SQL["pending"], waiting):
            await turns.take(len(row["payload"]))
            pending = store.read_pending(row)
            self._pending[store.run_key(row)][pending.command.position] = pending

    async def read_jobs_of_reports(self, reports: Sequence[tuple[RunKey, ReportJobStatus]], evaluating: bool) -> None:  # noqa: FBT001
        """Read the jobs that reports name. If `evaluating`, also read every job that can change when these jobs end."""
        await self.read_jobs(
            {(key, name) for key, each in reports for name in (each.job_name, *(each.dropped_jobs or ()))}
        )
        succeeded: set[JobKey] = set()
        failed: set[JobKey] = set()
        for key, each in reports:
            if evaluating and self.runs[key].evaluated:
                if each.status not in rules.UNFINISHED:
                    (succeeded if each.status is JobStatus.SUCCESS else failed).add((key, each.job_name))
                failed |= {(key, name) for name in each.dropped_jobs or ()}
        await self.read_affected_jobs(succeeded, failed)

    async def read_jobs(self, jobs: Iterable[JobKey]) -> None:
        """Read jobs by key."""
        await self._read_jobs(_by_run(jobs))

    async def read_affected_jobs(self, succeeded: Collection[JobKey], failed: Collection[JobKey]) -> None:
        """Read the jobs that need the ended jobs, and the jobs that a failure skips.

        The skipped jobs are read level by level, which reads only jobs that can change. A recursive statement would
        use no index on PostgreSQL.
        """
        seen = _by_run(each for each in (*succeeded, *failed) if each[1] in self._jobs[each[0]])
        await self._read_downstream(seen)
        failing: Names = {
            key: [name for name in names if (key, name) in failed or self._jobs[key][name].is_waiting]
            for key, names in seen.items()
        }
        for _ in range(_MAX_LEVELS):
            level = {key: self._skipped_by(key, names) - seen[key] for key, names in failing.items()}
            failing = {key: names for key, names in level.items() if names}
            if not failing:
                return
            for key, names in failing.items():
                seen[key].update(names)
            await self._read_downstream(failing)
        await self.read_whole_runs([key for key, names in failing.items() if self._skipped_by(key, names) - seen[key]])

    def _skipped_by(self, key: RunKey, failing: Collection[str]) -> set[str]:
        """Return the waiting jobs of a run that are skipped if jobs of it fail."""
        jobs, skip = self._jobs[key], IfFailed.SKIP
        edges = self._edges_from(key, failing)
        return {name for _, name, if_failed in edges if if_failed is skip and jobs[name].is_waiting}

    async def _read_downstream(self, jobs: Names) -> None:
        """Read the jobs that need `jobs`, and the edges to them.

        The two reads are not joined: without statistics, PostgreSQL would start the join with all jobs of a run.
        """
        named = [store.job_parameters((key, name)) for key, names in jobs.items() for name in names]
        self._add_edges(await self._reader.fetch_each(_SQL["downstream"], named))
        needing = {key: map(JOB_OF, self._edges_from(key, names)) for key, names in jobs.items()}
        await self._read_jobs({key: set(names).difference(self._jobs[key]) for key, names in needing.items()})

    def _edges_from(self, key: RunKey, names: Collection[str]) -> Iterator[Edge]:
        return chain.from_iterable(self._downstream[key].get(name, ()) for name in names)

    async def _read_jobs(self, jobs: Names) -> None:
        """Read jobs. If these are most of a run, read all of its jobs, which is faster."""
        whole = [key._asdict() for key, names in jobs.items() if len(names) > _MOST_JOBS]
        some = [
            store.job_parameters((key, name))
            for key, names in jobs.items()
            if len(names) <= _MOST_JOBS
            for name in names
        ]
        self._add_jobs(await self._reader.fetch_each(_SQL["jobs_of_run"], whole))
        self._add_jobs(await self._reader.fetch_each(_SQL["find_job"], some))

    def _add_jobs(self, rows: Iterable[Row]) -> None:
        for key, job in store.read_jobs(rows):
            self._jobs[key][job.name] = job

    def _add_edges(self, rows: Iterable[Row]) -> None:
        """Add the edges from jobs to the jobs that need them."""
        for tenant_id, run_id, upstream, needed_by in rows:
            self._downstream[RunKey(tenant_id, run_id)][upstream] = read_needed_by(upstream, needed_by)


def _by_run(jobs: Iterable[JobKey]) -> dict[RunKey, set[str]]:
    names = defaultdict[RunKey, set[str]](set)
    for key, name in jobs:
        names[key].add(name)
    return names
