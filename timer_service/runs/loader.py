"""Reads as much of runs as some commands can change."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from timer_service.core.database import Reader, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Command, Position
from timer_service.core.sql import load_sql
from timer_service.runs import rules, store
from timer_service.runs.draft import Pending, RunState
from timer_service.runs.graph import Edge
from timer_service.runs.messages import CancelRun, IfFailed, JobStatus, ReportJobStatus, ResolveGroup, StartRun
from timer_service.runs.rules import NOWHERE, Group, Job, Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "loader.sql")
_FIND_LOCKED = f"{_SQL['find_run']}\n/* for update */"
_IF_FAILED = {str(each): each for each in IfFailed}
_DEEPEST = 50
"""Levels of a cascade of skips that are read one by one. For a deeper one the whole run is read, in four statements."""


async def load(
    tx: Transaction, commands: Mapping[RunKey, Sequence[Command]], now: int, *, evaluating: bool
) -> dict[RunKey, RunState]:
    """Lock the runs of commands and read what the commands can change. A run that is not known is made.

    Until the transaction ends no other one writes these runs.
    """
    loader = Loader(tx, await _lock_or_make(tx, commands.keys(), now))
    of_kind = defaultdict[type, list[tuple[RunKey, Command]]](list)
    for key, each in ((key, each) for key, several in commands.items() for each in several):
        of_kind[type(each.payload)].append((key, each))
    started = {key for key, run in loader.runs.items() if run.started}
    cancels = {key for key, each in of_kind[StartRun] if each.position < loader.runs[key].since}
    whole = ({key for kind in (ResolveGroup, CancelRun) for key, _ in of_kind[kind]} | cancels) & started
    await loader.read_whole(whole)
    may_apply_pending = {key for kind in (StartRun, ResolveGroup, CancelRun) for key, _ in of_kind[kind]}
    await loader.read_pending(may_apply_pending)
    early = [(key, each) for kind in (ReportJobStatus, ResolveGroup) for key, each in of_kind[kind]]
    await loader.read_pending_at({(key, each.position) for key, each in early if loader.may_keep(key)})
    reports = [(key, each.payload) for key, each in of_kind[ReportJobStatus] if key in started - whole]
    await loader.read_reported([(key, each) for key, each in reports if isinstance(each, ReportJobStatus)], evaluating)
    return loader.states()


async def lock(tx: Transaction, key: RunKey) -> Run | None:
    """Read a run; until the transaction ends no other one writes it or anything of it."""
    rows = await tx.fetch(_FIND_LOCKED, key._asdict())
    return store.read_run(rows[0]) if rows else None


async def find(reader: Reader, key: RunKey) -> Run | None:
    """Read a run."""
    rows = await reader.fetch(_SQL["find_run"], key._asdict())
    return store.read_run(rows[0]) if rows else None


async def _lock_or_make(tx: Transaction, keys: Collection[RunKey], now: int) -> dict[RunKey, Run]:
    """Lock runs in the order of their keys, so that instances that handle the same runs wait for each other in turn."""
    named = [key._asdict() for key in sorted(keys)]
    rows = await tx.fetch_each(_FIND_LOCKED, named)
    if len(rows) < len(keys):
        await tx.executemany(_SQL["name_run"], [{**key, "now": now, "nowhere": NOWHERE.sequence} for key in named])
        rows = await tx.fetch_each(_FIND_LOCKED, named)
    if len(rows) < len(keys):
        raise ConflictError("a run was deleted meanwhile, for its age")
    return {run.key: run for run in map(store.read_run, rows)}


class Loader:
    """Collects what is read of some runs."""

    def __init__(self, reader: Reader, runs: Mapping[RunKey, Run]) -> None:
        self.runs = runs
        self._reader = reader
        self._jobs: dict[RunKey, dict[str, Job]] = {key: {} for key in runs}
        self._downstream: dict[RunKey, dict[str, list[Edge]]] = {key: {} for key in runs}
        self._groups: dict[RunKey, dict[str, Group]] = {key: {} for key in runs}
        self._waiting: dict[RunKey, dict[str, list[Edge]]] = {key: {} for key in runs}
        self._pending: dict[RunKey, dict[Position, Pending]] = {key: {} for key in runs}

    def states(self) -> dict[RunKey, RunState]:
        """Return the runs as far as they were read."""
        return {
            key: RunState(
                run,
                self._jobs[key],
                self._downstream[key],
                self._groups[key],
                self._waiting[key],
                self._pending[key],
            )
            for key, run in self.runs.items()
        }

    def may_keep(self, key: RunKey) -> bool:
        """Return whether commands on a run may have to be kept."""
        return not self.runs[key].started or self.runs[key].open_groups > 0

    async def read_whole(self, keys: Collection[RunKey]) -> None:
        """Read all jobs, edges and groups of runs."""
        named = [key._asdict() for key in keys]
        for row in await self._reader.fetch_each(_SQL["jobs_of_run"], named):
            self._jobs[store.run_key(row)][row["job_name"]] = store.read_job(row)
        for key in keys:
            self._downstream[key] = {}
        for row in await self._reader.fetch_each(_SQL["needs_of_run"], named):
            edge = Edge(row["upstream_name"], row["job_name"], _IF_FAILED[row["if_failed"]])
            self._downstream[store.run_key(row)].setdefault(edge.upstream, []).append(edge)
        for row in await self._reader.fetch_each(_SQL["groups_of_run"], named):
            self._groups[store.run_key(row)][row["group_name"]] = store.read_group(row)
        for row in await self._reader.fetch_each(_SQL["group_needs_of_run"], named):
            edge = Edge(row["group_name"], row["job_name"], _IF_FAILED[row["if_failed"]])
            self._waiting[store.run_key(row)].setdefault(edge.upstream, []).append(edge)

    async def read_pending(self, keys: Iterable[RunKey]) -> None:
        """Read the pending commands of runs."""
        named = [key._asdict() for key in keys if self.runs[key].pending_bytes]
        for row in await self._reader.fetch_each(_SQL["pending"], named):
            pending = store.read_pending(row)
            self._pending[store.run_key(row)][pending.command.position] = pending

    async def read_pending_at(self, places: Iterable[tuple[RunKey, Position]]) -> None:
        """Read those pending commands that have some positions: they are delivered again."""
        named = [store.position_parameters(key, position) for key, position in places if self.runs[key].pending_bytes]
        for row in await self._reader.fetch_each(_SQL["pending_at"], named):
            pending = store.read_pending(row)
            self._pending[store.run_key(row)][pending.command.position] = pending

    async def read_reported(self, reports: Sequence[tuple[RunKey, ReportJobStatus]], evaluating: bool) -> None:  # noqa: FBT001
        """Read the jobs that reports name and, when `evaluating`, what can follow from their ends."""
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
        await self.read_consequences(succeeded, failed)

    async def read_jobs(self, jobs: Iterable[JobKey]) -> None:
        """Read some jobs."""
        for row in await self._reader.fetch_each(_SQL["find_job"], [store.job_parameters(each) for each in jobs]):
            self._jobs[store.run_key(row)][row["job_name"]] = store.read_job(row)

    async def read_consequences(self, succeeded: Collection[JobKey], failed: Collection[JobKey]) -> None:
        """Read the jobs that need jobs that end, and, level by level, those that a failure among them skips.

        Level by level, because that reads only what can change. One recursive statement has no index on PostgreSQL.
        """
        seen = {each for each in (*succeeded, *failed) if each[1] in self._jobs[each[0]]}
        edges = await self._read_downstream(seen)
        fails = {each for each in seen if each in failed or self._jobs[each[0]][each[1]].waits}
        level = {(key, edge.job) for key, edge in edges if (key, edge.upstream) in fails and self._can_skip(key, edge)}
        for _ in range(_DEEPEST):
            level -= seen
            if not level:
                return
            seen |= level
            edges = await self._read_downstream(level)
            level = {(key, edge.job) for key, edge in edges if self._can_skip(key, edge)}
        await self.read_whole({key for key, _ in level})

    async def _read_downstream(self, jobs: Iterable[JobKey]) -> list[tuple[RunKey, Edge]]:
        """Read which jobs need some jobs, each asked for once; return the edges.

        Not as a join: PostgreSQL without statistics begins one with all jobs of a run.
        """
        edges = []
        for row in await self._reader.fetch_each(_SQL["downstream"], [store.job_parameters(each) for each in jobs]):
            key, edge = store.run_key(row), Edge(row["upstream_name"], row["job_name"], _IF_FAILED[row["if_failed"]])
            edges.append((key, edge))
            self._downstream[key].setdefault(edge.upstream, []).append(edge)
        await self.read_jobs({(key, edge.job) for key, edge in edges if edge.job not in self._jobs[key]})
        return edges

    def _can_skip(self, key: RunKey, edge: Edge) -> bool:
        return edge.if_failed is IfFailed.SKIP and self._jobs[key][edge.job].waits
