"""Reads the parts of runs that commands can change."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.message import Command, Position
from timer_service.runs import store
from timer_service.runs.draft import RunState
from timer_service.runs.graph import Edge, read_needed_by
from timer_service.runs.messages import (
    MAX_JOBS,
    CancelRun,
    IfFailed,
    JobStatus,
    ReportJobStatus,
    ResolveGroup,
    RetryRun,
    StartRun,
)
from timer_service.runs.pending import Pending
from timer_service.runs.rules import RETRIABLE, UNFINISHED, Group, Job, Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "loader.sql")
_FIND_RUN = _SQL["find_run"].format(columns=", ".join(store.RUN_COLUMNS))
_FIND_LOCKED = f"{_FIND_RUN}\n/* for update */"
_FIND_JOB, _JOBS_OF_RUN, _OPEN_JOBS_OF_RUN = (
    _SQL["find_jobs"].format(columns=", ".join(store.JOB_COLUMNS), each=each, which=which)
    for each, which in (
        ("/* each of many */", "AND job_name = :job_name"),
        ("", "ORDER BY job_name"),
        ("", "AND settled_at IS NULL ORDER BY job_name"),
    )
)
Names = Mapping[RunKey, Collection[str]]
"""Names of jobs by run."""
MOST_JOBS = MAX_JOBS // 2
"""For more jobs of one run, all of its jobs are read, which is faster."""
_MAX_LEVELS = 50
"""How deep a cascade of skips is read level by level, which reads only jobs that can change."""


async def load(
    tx: Transaction, runs: Mapping[RunKey, Run], commands: Mapping[RunKey, Sequence[Command]], *, evaluating: bool
) -> dict[RunKey, RunState]:
    """Read all rows of locked runs that commands can change.

    A ResolveGroup needs the whole run, because its jobs may close a cycle with any others. So does a RetryRun. A
    CancelRun needs the open jobs, and the whole run if one of these is an `always` job. A report needs the jobs that it
    names and those that an end of these makes ready or skips.
    """
    loader = Loader(tx, runs)
    of_type = defaultdict[type, set[RunKey]](set)
    for key, on_run in commands.items():
        for each in on_run:
            of_type[type(each.payload)].add(key)
    is_open = {key for key, run in runs.items() if run.is_open}
    whole = of_type[ResolveGroup] & is_open
    whole |= {key for key in of_type[RetryRun] if runs[key].status in RETRIABLE}
    cancelled = (of_type[CancelRun] & is_open) - whole
    await loader.read_jobs_of_runs(cancelled, only_open=True)
    whole |= {key for key in cancelled if loader.has_always_jobs(key)}
    await loader.read_whole_runs(whole)
    await loader.read_groups(of_type[ResolveGroup] - whole)
    await loader.read_pending(of_type[StartRun] | of_type[ResolveGroup] | of_type[CancelRun])
    reports = {
        key: [each.payload for each in commands[key] if isinstance(each.payload, ReportJobStatus)]
        for key in of_type[ReportJobStatus] - whole
        if runs[key].started
    }
    await loader.read_jobs({key: set(chain.from_iterable(each.named_jobs for each in reports[key])) for key in reports})
    if evaluating:
        now = {key: some for key, some in reports.items() if runs[key].evaluated}
        succeeded = {key: {each.job_name for each in some if _is_success(each)} for key, some in now.items()}
        failed = {key: set(chain.from_iterable(map(_failed_jobs, some))) for key, some in now.items()}
        await loader.read_affected_jobs(succeeded, failed)
    return loader.states()


def _is_success(report: ReportJobStatus) -> bool:
    return report.status is JobStatus.SUCCESS


def _failed_jobs(report: ReportJobStatus) -> Sequence[str]:
    """Return the jobs that a report ends without success."""
    is_failed = report.status not in UNFINISHED and not _is_success(report)
    return [*([report.job_name] if is_failed else []), *(report.dropped_jobs or ())]


async def lock_runs(tx: Transaction, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Lock and return the runs that exist. The order of the keys prevents deadlocks between instances.

    No other transaction writes these runs or their jobs until this transaction ends. No other inserts runs meanwhile:
    a transaction of the intake first moves the cursor of the log.
    """
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {run.key: run for run in map(store.read_run, rows)}


async def find_runs(reader: Reader, keys: Iterable[RunKey]) -> dict[RunKey, Run]:
    """Return the runs that exist, without a lock."""
    rows = await reader.fetch_each(_FIND_RUN, [key._asdict() for key in keys])
    return {run.key: run for run in map(store.read_run, rows)}


async def find_jobs(reader: Reader, jobs: Iterable[JobKey]) -> dict[JobKey, Job]:
    """Return the jobs that exist."""
    rows = await reader.fetch_each(_FIND_JOB, [store.job_parameters(each) for each in jobs])
    return {(key, job.name): job for key, job in store.read_jobs(rows)}


async def find_needs(reader: Reader, jobs: Iterable[JobKey]) -> dict[JobKey, str]:
    """Return the jobs that some jobs need, as `read_needs` takes them. A job that needs none is left out."""
    rows = await reader.fetch_each(_SQL["needs"], [store.job_parameters(each) for each in jobs])
    return {store.job_key(row): row["needs"] for row in rows}


async def find_groups(reader: Reader, keys: Collection[RunKey]) -> dict[RunKey, dict[str, Group]]:
    """Return the groups of each run."""
    groups: dict[RunKey, dict[str, Group]] = {key: {} for key in keys}
    for row in await reader.fetch_each(_SQL["groups_of_run"], [key._asdict() for key in keys]):
        groups[store.run_key(row)][row["group_name"]] = store.read_group(row)
    return groups


async def find_values(reader: Reader, column: str, jobs: Iterable[JobKey]) -> dict[JobKey, Any]:
    """Return the values of a column of `run_jobs`. A job without a value is left out."""
    statement = _SQL["find_value"].format(column=column)
    rows = await reader.fetch_each(statement, [store.job_parameters(each) for each in jobs])
    return {store.job_key(row): row["value"] for row in rows}


async def count_by_status(reader: Reader, keys: Collection[RunKey]) -> dict[RunKey, dict[JobStatus, int]]:
    """Return the number of jobs by status of each run."""
    counts: dict[RunKey, dict[JobStatus, int]] = {key: {} for key in keys}
    for row in await reader.fetch_each(_SQL["count_by_status"], [key._asdict() for key in keys]):
        counts[store.run_key(row)][JobStatus(row["status"])] = row["count"]
    return counts


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
        parts = self._jobs, self._downstream, self._groups, self._downstream_of_groups, self._pending
        return {key: RunState(run, *(part[key] for part in parts)) for key, run in self.runs.items()}  # type: ignore[arg-type]

    def has_always_jobs(self, key: RunKey) -> bool:
        """Return whether one of the jobs of a run that were read is an `always` job."""
        return any(job.always for job in self._jobs[key].values())

    async def read_whole_runs(self, keys: Collection[RunKey]) -> None:
        """Read all jobs, needs and groups of runs."""
        await self.read_jobs_of_runs(keys)
        self._add_edges(await self._fetch("edges_of_run", keys))
        await self.read_groups(keys)
        for row in await self._fetch("group_needs_of_run", keys):
            edge = Edge(row["group_name"], row["job_name"], IfFailed(row["if_failed"]))
            self._downstream_of_groups[store.run_key(row)].setdefault(edge.upstream, []).append(edge)

    async def read_jobs_of_runs(self, keys: Iterable[RunKey], *, only_open: bool = False) -> None:
        """Read all jobs of runs, or those that have not ended."""
        statement = _OPEN_JOBS_OF_RUN if only_open else _JOBS_OF_RUN
        self._add_jobs(await self._reader.fetch_each(statement, [key._asdict() for key in keys]))

    async def read_groups(self, keys: Collection[RunKey]) -> None:
        """Read the groups of runs."""
        self._groups |= await find_groups(self._reader, keys)

    async def read_pending(self, keys: Iterable[RunKey]) -> None:
        """Read the pending commands of runs."""
        for row in await self._fetch("pending", (key for key in keys if self.runs[key].pending_bytes)):
            pending = store.read_pending(row)
            self._pending[store.run_key(row)][pending.position] = pending

    async def read_jobs(self, jobs: Names) -> None:
        """Read jobs that exist. If these are most of a run, read all of its jobs, which is faster."""
        await self.read_jobs_of_runs([key for key, names in jobs.items() if len(names) > MOST_JOBS])
        some = {key: names for key, names in jobs.items() if len(names) <= MOST_JOBS}
        self._add_jobs(await self._reader.fetch_each(_FIND_JOB, _parameters(some)))

    async def read_affected_jobs(self, succeeded: Names, failed: Names) -> None:
        """Read the jobs that need the ended jobs, and the jobs that a failure skips, directly or not.

        `succeeded` and `failed` name the ended jobs. Those that exist have been read. Skipped jobs are found level by
        level; a run with too many levels is read as a whole.
        """
        ended = {key: {*succeeded.get(key, ()), *failed.get(key, ())} for key in {*succeeded, *failed}}
        seen = {key: names & self._jobs[key].keys() for key, names in ended.items()}
        await self._read_downstream(seen)
        # The success of a waiting job is ignored, but another command of the transaction may skip this job.
        level: Names = {
            key: [name for name in names if name in failed.get(key, ()) or self._jobs[key][name].is_waiting]
            for key, names in seen.items()
        }
        for _ in range(_MAX_LEVELS):
            skipped = {key: self._skipped_by(key, names) - seen[key] for key, names in level.items()}
            level = {key: names for key, names in skipped.items() if names}
            if not level:
                return
            for key, names in level.items():
                seen[key].update(names)
            await self._read_downstream(level)
        await self.read_whole_runs(level)

    def _skipped_by(self, key: RunKey, failing: Collection[str]) -> set[str]:
        """Return the waiting jobs of a run that are skipped if jobs of it fail."""
        jobs, skip = self._jobs[key], IfFailed.SKIP
        edges = self._edges_from(key, failing)
        return {name for _, name, if_failed in edges if if_failed is skip and jobs[name].is_waiting}

    async def _read_downstream(self, jobs: Names) -> None:
        """Read the jobs that need `jobs`, and the edges to them.

        The two reads are not joined: without statistics, PostgreSQL would start the join with all jobs of a run.
        """
        self._add_edges(await self._reader.fetch_each(_SQL["downstream"], _parameters(jobs)))
        needing = {key: {edge.job for edge in self._edges_from(key, names)} for key, names in jobs.items()}
        await self.read_jobs({key: names.difference(self._jobs[key]) for key, names in needing.items()})

    def _edges_from(self, key: RunKey, names: Collection[str]) -> Iterator[Edge]:
        return chain.from_iterable(self._downstream[key].get(name, ()) for name in names)

    async def _fetch(self, statement: str, keys: Iterable[RunKey]) -> Sequence[Row]:
        return await self._reader.fetch_each(_SQL[statement], [key._asdict() for key in keys])

    def _add_jobs(self, rows: Iterable[Row]) -> None:
        for key, job in store.read_jobs(rows):
            self._jobs[key][job.name] = job

    def _add_edges(self, rows: Iterable[Row]) -> None:
        """Add the edges from jobs to the jobs that need them."""
        for tenant_id, run_id, upstream, needed_by in rows:
            self._downstream[RunKey(tenant_id, run_id)][upstream] = read_needed_by(upstream, needed_by)


def _parameters(jobs: Names) -> list[dict[str, str]]:
    return [store.job_parameters((key, name)) for key, names in jobs.items() for name in names]
