"""Reads the parts of runs that commands can change."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from timer_service.core.database import Reader, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Command, Position
from timer_service.core.sql import load_sql
from timer_service.core.turns import Turns
from timer_service.runs import rules, store
from timer_service.runs.draft import Pending, RunState
from timer_service.runs.edges import read_needed_by
from timer_service.runs.graph import Edge
from timer_service.runs.messages import CancelRun, IfFailed, JobStatus, ReportJobStatus, ResolveGroup, StartRun
from timer_service.runs.rules import NO_POSITION, Group, Job, Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "loader.sql")
_FIND_LOCKED = f"{_SQL['find_run']}\n/* for update */"
_IF_FAILED = {str(each): each for each in IfFailed}
_BYTES_OF_TURN = 64 * 1024
_MAX_LEVELS = 50
"""A cascade of skips is read level by level up to this depth. For a deeper one, four statements read the whole run."""


async def load(
    tx: Transaction, runs: Mapping[RunKey, Run], commands: Mapping[RunKey, Sequence[Command]], *, evaluating: bool
) -> dict[RunKey, RunState]:
    """Read all rows of locked runs that commands can change."""
    loader = Loader(tx, runs)
    by_type = defaultdict[type, list[tuple[RunKey, Command]]](list)
    for key, each in ((key, each) for key, on_run in commands.items() for each in on_run):
        by_type[type(each.payload)].append((key, each))
    is_open = {key for key, run in runs.items() if run.is_open}
    to_cancel = {key for key, each in by_type[StartRun] if each.position < runs[key].since}
    whole = ({key for kind in (ResolveGroup, CancelRun) for key, _ in by_type[kind]} | to_cancel) & is_open
    only_cancelled = {key for key in whole if all(isinstance(each.payload, CancelRun) for each in commands[key])}
    await loader.read_open_jobs(only_cancelled)
    await loader.read_whole_runs(whole - only_cancelled)
    started = {key for key, run in runs.items() if run.started}
    resolving = {key for key, _ in by_type[ResolveGroup]} & started  # before the StartRun, a ResolveGroup only waits
    await loader.read_groups(resolving - whole)
    starting = {key for key, _ in by_type[StartRun]} - started  # a repeated StartRun changes nothing of what waits
    await loader.read_pending(resolving | starting | to_cancel | {key for key, _ in by_type[CancelRun]})
    may_be_kept = [(key, each) for kind in (ReportJobStatus, ResolveGroup) for key, each in by_type[kind]]
    await loader.read_pending_at({(key, each.position) for key, each in may_be_kept if loader.may_keep(key)})
    reports = [
        (key, each.payload)
        for key, each in by_type[ReportJobStatus]
        if key in started - whole and isinstance(each.payload, ReportJobStatus)
    ]
    await loader.read_jobs_of_reports(reports, evaluating)
    return loader.states()


async def lock_runs(tx: Transaction, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Lock and return the runs that exist. The order of the keys prevents deadlocks between instances.

    No other transaction writes these runs until this transaction ends.
    """
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {run.key: run for run in map(store.read_run, rows)}


async def insert_runs(tx: Transaction, keys: Collection[RunKey], now: int) -> dict[RunKey, Run]:
    """Insert runs that do not exist, lock and return them. Raises `ConflictError` if retention deletes one."""
    if not keys:
        return {}
    new = [{**key._asdict(), "now": now, "no_position": NO_POSITION.sequence} for key in sorted(keys)]
    await tx.executemany(_SQL["insert_run"], new)
    inserted = await lock_runs(tx, keys)
    if len(inserted) < len(keys):
        raise ConflictError("retention deleted a run before it was locked")
    return inserted


async def delete_unused_runs(tx: Transaction, keys: Iterable[RunKey]) -> None:
    """Delete inserted runs that no command has changed."""
    await tx.executemany(_SQL["delete_unused_run"], [key._asdict() for key in sorted(keys)])


async def lock_run(tx: Transaction, key: RunKey) -> Run | None:
    """Lock and return a run. No other transaction writes the run or its jobs until this transaction ends."""
    rows = await tx.fetch(_FIND_LOCKED, key._asdict())
    return store.read_run(rows[0]) if rows else None


async def count_group_needs(reader: Reader, keys: Collection[RunKey]) -> dict[RunKey, dict[str, int]]:
    """Return how many jobs need each group of the runs."""
    counts: dict[RunKey, dict[str, int]] = {key: {} for key in keys}
    for row in await reader.fetch_each(_SQL["count_group_needs"], [key._asdict() for key in keys]):
        counts[RunKey(row["tenant_id"], row["run_id"])][row["group_name"]] = row["count"]
    return counts


async def find_run(reader: Reader, key: RunKey) -> Run | None:
    """Return a run, or None."""
    return (await find_runs(reader, [key])).get(key)


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

    def may_keep(self, key: RunKey) -> bool:
        """Return whether a command on a run may become pending."""
        return not self.runs[key].started or self.runs[key].open_groups > 0

    async def read_whole_runs(self, keys: Collection[RunKey]) -> None:
        """Read all jobs, needs and groups of runs."""
        named = [key._asdict() for key in keys]
        for row in await self._reader.fetch_each(_SQL["jobs_of_run"], named):
            self._jobs[store.run_key(row)][row["job_name"]] = store.read_job(row)
        for key in keys:
            self._downstream[key] = {}
        await self._read_edges("edges_of_run", named)
        await self.read_groups(keys)
        for row in await self._reader.fetch_each(_SQL["group_needs_of_run"], named):
            edge = Edge(row["group_name"], row["job_name"], _IF_FAILED[row["if_failed"]])
            self._downstream_of_groups[store.run_key(row)].setdefault(edge.upstream, []).append(edge)

    async def read_open_jobs(self, keys: Collection[RunKey]) -> None:
        """Read the jobs of runs that have not ended."""
        for row in await self._reader.fetch_each(_SQL["open_jobs_of_run"], [key._asdict() for key in keys]):
            self._jobs[store.run_key(row)][row["job_name"]] = store.read_job(row)

    async def read_groups(self, keys: Collection[RunKey]) -> None:
        """Read the groups of runs."""
        for row in await self._reader.fetch_each(_SQL["groups_of_run"], [key._asdict() for key in keys]):
            self._groups[store.run_key(row)][row["group_name"]] = store.read_group(row)

    async def read_pending(self, keys: Iterable[RunKey]) -> None:
        """Read the pending commands of runs, and count their bytes again: earlier versions counted others.

        A run can have 16,000, which take 0.1 s. Other tasks run in between.
        """
        waiting = [key for key in keys if self.runs[key].pending_bytes]
        turns = Turns(_BYTES_OF_TURN)
        for row in await self._reader.fetch_each(_SQL["pending"], [key._asdict() for key in waiting]):
            await turns.take(len(row["payload"]))
            pending = store.read_pending(row)
            self._pending[store.run_key(row)][pending.command.position] = pending
        for key in waiting:
            size = sum(pending.size for pending in self._pending[key].values())
            self.runs[key] = self.runs[key]._replace(pending_bytes=size)

    async def read_pending_at(self, positions: Iterable[tuple[RunKey, Position]]) -> None:
        """Read the pending commands at some positions. A redelivered command must not be kept twice."""
        named = [store.position_parameters(key, at) for key, at in positions if self.runs[key].pending_bytes]
        for row in await self._reader.fetch_each(_SQL["pending_at"], named):
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
        for row in await self._reader.fetch_each(_SQL["find_job"], [store.job_parameters(each) for each in jobs]):
            self._jobs[store.run_key(row)][row["job_name"]] = store.read_job(row)

    async def read_affected_jobs(self, succeeded: Collection[JobKey], failed: Collection[JobKey]) -> None:
        """Read the jobs that need the ended jobs, and the jobs that a failure skips.

        The skipped jobs are read level by level, which reads only jobs that can change. A recursive statement would
        use no index on PostgreSQL.
        """
        seen = {each for each in (*succeeded, *failed) if each[1] in self._jobs[each[0]]}
        edges = await self._read_downstream(seen)
        fails = {each for each in seen if each in failed or self._jobs[each[0]][each[1]].is_waiting}
        level = {(key, edge.job) for key, edge in edges if (key, edge.upstream) in fails and self._can_skip(key, edge)}
        for _ in range(_MAX_LEVELS):
            level -= seen
            if not level:
                return
            seen |= level
            edges = await self._read_downstream(level)
            level = {(key, edge.job) for key, edge in edges if self._can_skip(key, edge)}
        await self.read_whole_runs({key for key, _ in level})

    async def _read_downstream(self, jobs: Iterable[JobKey]) -> list[tuple[RunKey, Edge]]:
        """Read the jobs that need `jobs`, and the edges to them. Return the edges.

        The two reads are not joined: without statistics, PostgreSQL would start the join with all jobs of a run.
        """
        read = await self._read_edges("downstream", [store.job_parameters(each) for each in jobs])
        edges = [(key, edge) for key, upstream in read for edge in self._downstream[key][upstream]]
        await self.read_jobs({(key, edge.job) for key, edge in edges if edge.job not in self._jobs[key]})
        return edges

    async def _read_edges(self, statement: str, named: Sequence[Mapping[str, str]]) -> list[JobKey]:
        """Read the edges from jobs to the jobs that need them. Return the jobs that other jobs need."""
        found: list[JobKey] = []
        for row in await self._reader.fetch_each(_SQL[statement], named):
            key, upstream = store.run_key(row), row["job_name"]
            self._downstream[key][upstream] = read_needed_by(upstream, row["needed_by"])
            found.append((key, upstream))
        return found

    def _can_skip(self, key: RunKey, edge: Edge) -> bool:
        return edge.if_failed is IfFailed.SKIP and self._jobs[key][edge.job].is_waiting
