"""Runs, their jobs, and who needs whom in the database: rows <-> rules."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.errors import ConflictError
from timer_service.core.message import Position, Trace
from timer_service.core.sql import load_sql
from timer_service.runs.graph import Graph
from timer_service.runs.messages import IfFailed, JobStatus, RunStatus
from timer_service.runs.rules import NOWHERE, Cause, Edge, Group, Job, Run, RunKey

_SQL = load_sql("timer_service.runs", "store.sql")
_FIND_LOCKED = f"{_SQL['find_run']}\n/* for update */"

JobKey = tuple[RunKey, str]
"""A job of a run."""


async def lock_runs(tx: Transaction, keys: Collection[RunKey], now: int) -> dict[RunKey, Run]:
    """Read runs; until the transaction ends no other one writes them or anything of theirs.

    One that nobody has started is made, so that there is something to lock. In the order of their keys, as all rows are
    locked: so instances that handle the same ones wait for each other in turn.
    """
    named = [key._asdict() for key in sorted(keys)]
    await tx.executemany(_SQL["name_run"], [{**key, "now": now, "nowhere": NOWHERE.sequence} for key in named])
    runs = await lock_known(tx, keys)
    if len(runs) < len(keys):
        raise ConflictError("a run was deleted for its age meanwhile")
    return runs


async def lock_known(tx: Transaction, keys: Collection[RunKey]) -> dict[RunKey, Run]:
    """Read those of some runs that there are, as `lock_runs`."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {run.key: run for run in map(read_run, rows)}


async def load_whole(reader: Reader, graphs: Mapping[RunKey, Graph]) -> None:
    """Read all jobs, edges and groups of runs."""
    keys = [key._asdict() for key in graphs]
    for row in await reader.fetch_each(_SQL["jobs_of_run"], keys):
        graphs[_key(row)].jobs[row["job_name"]] = read_job(row)
    for row in await reader.fetch_each(_SQL["needs_of_run"], keys):
        edge = Edge(row["upstream_name"], row["job_name"], IfFailed(row["if_failed"]))
        graphs[_key(row)].downstream[edge.upstream].append(edge)
    for row in await reader.fetch_each(_SQL["groups_of_run"], keys):
        graphs[_key(row)].groups[row["group_name"]] = Group(row["group_name"], row["digest"], row["resolved_at"])
    for row in await reader.fetch_each(_SQL["group_needs_of_run"], keys):
        edge = Edge(row["group_name"], row["job_name"], IfFailed(row["if_failed"]))
        graphs[_key(row)].waiting[edge.upstream].append(edge)


async def load_jobs(reader: Reader, graphs: Mapping[RunKey, Graph], places: Iterable[JobKey]) -> None:
    """Read some jobs of runs."""
    for row in await reader.fetch_each(_SQL["find_job"], [_place(each) for each in places]):
        graphs[_key(row)].jobs[row["job_name"]] = read_job(row)


async def load_downstream(
    reader: Reader, graphs: Mapping[RunKey, Graph], places: Iterable[JobKey]
) -> list[tuple[RunKey, Edge]]:
    """Read who needs some jobs, each asked for once; return the edges.

    Not as a join: PostgreSQL without statistics begins one with all jobs of a run.
    """
    edges = []
    for row in await reader.fetch_each(_SQL["downstream"], [_place(each) for each in places]):
        edge = Edge(row["upstream_name"], row["job_name"], IfFailed(row["if_failed"]))
        edges.append((_key(row), edge))
        graphs[_key(row)].downstream[edge.upstream].append(edge)
    await load_jobs(reader, graphs, {(key, edge.job) for key, edge in edges if edge.job not in graphs[key].jobs})
    return edges


async def put_runs(tx: Transaction, runs: Iterable[Run]) -> None:
    """Write runs that are locked."""
    await tx.executemany(_SQL["put_run"], [_run_parameters(run) for run in runs])


async def add_jobs(tx: Transaction, jobs: Iterable[tuple[RunKey, Job, str | None, str | None]]) -> None:
    """Write new jobs, each with its payload and its outputs."""
    parameters = [
        {
            **_job_parameters(key, job),
            "group_name": job.group,
            "payload": payload,
            "outputs": outputs,
            "stale_after_ms": job.stale_after_ms,
        }
        for key, job, payload, outputs in jobs
    ]
    await tx.executemany(_SQL["add_job"], parameters)


async def put_jobs(tx: Transaction, jobs: Iterable[tuple[RunKey, Job]]) -> None:
    """Write jobs whose runs are locked."""
    await tx.executemany(_SQL["put_job"], [_job_parameters(key, job) for key, job in jobs])


async def put_outputs(tx: Transaction, outputs: Iterable[tuple[JobKey, str]]) -> None:
    """Write what jobs have put out."""
    await tx.executemany(_SQL["put_outputs"], [{**_place(place), "outputs": text} for place, text in outputs])


async def add_needs(tx: Transaction, edges: Iterable[tuple[RunKey, Edge]]) -> None:
    """Write that jobs need others."""
    parameters = [
        {**key._asdict(), "job_name": edge.job, "upstream_name": edge.upstream, "if_failed": edge.if_failed}
        for key, edge in edges
    ]
    await tx.executemany(_SQL["add_need"], parameters)


async def add_group_needs(tx: Transaction, edges: Iterable[tuple[RunKey, Edge]]) -> None:
    """Write that jobs need groups."""
    parameters = [
        {**key._asdict(), "job_name": edge.job, "group_name": edge.upstream, "if_failed": edge.if_failed}
        for key, edge in edges
    ]
    await tx.executemany(_SQL["add_group_need"], parameters)


async def put_groups(tx: Transaction, groups: Iterable[tuple[RunKey, Group]]) -> None:
    """Write groups, new ones and those that are resolved."""
    parameters = [
        {**key._asdict(), "group_name": each.name, "digest": each.digest, "resolved_at": each.resolved_at}
        for key, each in groups
    ]
    await tx.executemany(_SQL["put_group"], parameters)


async def counts(reader: Reader, keys: Iterable[RunKey]) -> dict[RunKey, dict[JobStatus, int]]:
    """Return how many jobs of each status there are in runs."""
    named = [key._asdict() for key in keys]
    found: dict[RunKey, dict[JobStatus, int]] = {RunKey(**each): {} for each in named}
    for row in await reader.fetch_each(_SQL["counts"], named):
        found[_key(row)][JobStatus(row["status"])] = row["count"]
    return found


async def given(reader: Reader, places: Sequence[JobKey]) -> Sequence[Row]:
    """Read what jobs were given by the command that named them."""
    return await reader.fetch_each(_SQL["given"], [_place(each) for each in places])


async def upstream_outputs(reader: Reader, places: Sequence[JobKey]) -> Sequence[Row]:
    """Read what the upstreams of jobs put out, where they did."""
    return await reader.fetch_each(_SQL["upstream_outputs"], [_place(each) for each in places])


async def page(
    reader: Reader, tenant_id: str, status: RunStatus | None, before: Sequence[Any], limit: int
) -> list[Run]:
    """Read the next runs older than `before`, newest first."""
    such = "status IS NOT NULL" if status is None else f"status = '{status}'"
    before_at, before_id = before
    parameters = {"tenant_id": tenant_id, "before_at": before_at, "before_id": before_id, "limit": limit}
    return [read_run(row) for row in await reader.fetch(_SQL["page"].format(where=such), parameters)]


async def find_run(reader: Reader, key: RunKey) -> Run | None:
    """Read a run."""
    rows = await reader.fetch(_SQL["find_run"], key._asdict())
    return read_run(rows[0]) if rows else None


async def groups(reader: Reader, key: RunKey) -> Sequence[Row]:
    """Read the groups of a run."""
    return await reader.fetch(_SQL["groups_of_run"], key._asdict())


async def page_of_jobs(reader: Reader, key: RunKey, after: str, limit: int) -> Sequence[Row]:
    """Read the next jobs of a run, in order of their names, with what they put out."""
    return await reader.fetch(_SQL["page_of_jobs"], {**key._asdict(), "after": after, "limit": limit})


async def needs_of_jobs(reader: Reader, places: Sequence[JobKey]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Read what jobs need: the jobs, and the groups."""
    named = [_place(each) for each in places]
    return (
        await reader.fetch_each(_SQL["needs_of_job"], named),
        await reader.fetch_each(_SQL["group_needs_of_job"], named),
    )


def read_run(row: Row) -> Run:
    """Read a row of `runs`."""
    return Run(
        key=_key(row),
        status=None if row["status"] is None else RunStatus(row["status"]),
        position=Position(row["position_epoch"], row["position_sequence"]),
        created_at=row["created_at"],
        digest=row["digest"],
        open_jobs=row["open_jobs"],
        open_groups=row["open_groups"],
        cause=Cause(row["causation_id"], row["correlation_id"], Trace(row["traceparent"], row["tracestate"])),
        settled_at=row["settled_at"],
        flaw_code=row["flaw_code"],
        flaw_path=row["flaw_path"],
        evaluated=bool(row["evaluated"]),
        sweep_at=row["sweep_at"],
    )


def read_job(row: Row) -> Job:
    """Read a row of `run_jobs`."""
    return Job(
        name=row["job_name"],
        status=JobStatus(row["status"]),
        group=row["group_name"],
        ready_at=row["ready_at"],
        open_needs=row["open_needs"],
        open_groups=row["open_groups"],
        settled_at=row["settled_at"],
        reason=row["reason"],
        stale_after_ms=row["stale_after_ms"],
        stale_at=row["stale_at"],
        position=Position(row["position_epoch"], row["position_sequence"]),
    )


def _key(row: Row) -> RunKey:
    return RunKey(row["tenant_id"], row["run_id"])


def _place(place: JobKey) -> Mapping[str, Any]:
    key, job = place
    return {"tenant_id": key.tenant_id, "run_id": key.run_id, "job_name": job}


def _job_parameters(key: RunKey, job: Job) -> dict[str, Any]:
    return {
        "tenant_id": key.tenant_id,
        "run_id": key.run_id,
        "job_name": job.name,
        "status": job.status,
        "reason": job.reason,
        "open_needs": job.open_needs,
        "open_groups": job.open_groups,
        "ready_at": job.ready_at,
        "settled_at": job.settled_at,
        "stale_at": job.stale_at,
        "position_epoch": job.position.epoch,
        "position_sequence": job.position.sequence,
    }


def _run_parameters(run: Run) -> Mapping[str, Any]:
    return {
        **run.key._asdict(),
        "status": run.status,
        "digest": run.digest,
        "open_jobs": run.open_jobs,
        "open_groups": run.open_groups,
        "evaluated": int(run.evaluated),
        "flaw_code": run.flaw_code,
        "flaw_path": run.flaw_path,
        "created_at": run.created_at,
        "settled_at": run.settled_at,
        "sweep_at": run.sweep_at,
        "position_epoch": run.position.epoch,
        "position_sequence": run.position.sequence,
        "correlation_id": run.cause.correlation_id,
        "causation_id": run.cause.command_id,
        "traceparent": run.cause.trace.traceparent,
        "tracestate": run.cause.trace.tracestate,
    }
