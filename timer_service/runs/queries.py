"""The queries about runs. A tenant sees only its own runs."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic import Field
from pydantic_core import from_json, to_json

from timer_service.core.database import Reader, Row
from timer_service.core.errors import Code, Rejection
from timer_service.core.instant import LATEST, Instant, format_instant, format_optional
from timer_service.core.message import Identifier, Payload, Tenant
from timer_service.core.paging import (
    PAGE_BYTES,
    PageCursor,
    PageLimit,
    next_step,
    read_cursor,
    read_page,
    write_cursor,
)
from timer_service.core.query import QueryRoute, omit_none
from timer_service.core.sql import load_sql
from timer_service.core.stored_json import DamagedFields, RawJson, write_list, write_object, write_view
from timer_service.runs import loader, store
from timer_service.runs.edges import read_needs
from timer_service.runs.messages import FlawCode, GroupNeed, JobNeed, JobStatus, RunStatus
from timer_service.runs.rules import Run, RunKey

_SQL = load_sql("timer_service.runs", "queries.sql")
_NEEDS_PER_READ = 64 * 1024
"""How many characters of needs are read at a time, of all jobs that are read together. A single job may have more.

They are at most 10,000 needs. Nothing else runs while they are parsed and sorted.
"""
_NEEDS_OVERHEAD = 50
"""The bytes of the field names `needs` and `moreNeeds`."""
_NEWER_THAN_ALL = (LATEST + 1, "")


class GetRun(Payload):
    """Get one run and a page of its jobs, ordered by name."""

    run_id: Identifier
    limit: PageLimit = 1000
    cursor: PageCursor | None = None


class ListRuns(Payload):
    """List a page of started runs, newest first."""

    status: RunStatus | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class RunView(Payload):
    """A run in a reply to a command or a query."""

    tenant_id: Tenant
    run_id: Identifier
    status: RunStatus
    created_at: Instant
    open_jobs: int = Field(ge=0, description="The number of jobs that have not ended.")
    unresolved_groups: int = Field(ge=0)
    settled_at: Instant | None = None
    code: FlawCode | None = Field(default=None, description="Why the run was rejected.")
    path: list[str] | None = Field(default=None, description="The jobs at fault.")
    damaged: DamagedFields = None


class JobView(Payload):
    """A job of a run. `readyAt` is set if the job became ready."""

    name: Identifier
    status: JobStatus
    needs: list[JobNeed | GroupNeed] = Field(
        description="The jobs and the unresolved groups that this job needs. Resolved groups are shown as their jobs."
    )
    group_name: Identifier | None = None
    ready_at: Instant | None = None
    settled_at: Instant | None = None
    reason: str | None = None
    outputs: dict[str, Any] | None = None
    more_needs: bool | None = Field(
        default=None, description="The next page shows this job again, with more of its needs."
    )
    damaged: DamagedFields = None


class RunDetails(RunView):
    """A run and a page of its jobs, ordered by name. `cursor` is set if there are more jobs."""

    counts: Mapping[JobStatus, int]
    groups: Mapping[str, bool] = Field(description="Whether each dynamic group is resolved.")
    jobs: list[JobView]
    cursor: str | None = None


class RunPage(Payload):
    """A page of runs, newest first. `cursor` is set if there are more runs; use it with the same filters."""

    runs: list[RunView]
    cursor: str | None = None


def run_view(run: Run) -> Mapping[str, Any]:
    """Return the view of a run for replies."""
    try:
        path, damaged = None if run.flaw_path is None else from_json(run.flaw_path), None
    except ValueError:
        path, damaged = None, ["path"]
    return omit_none(
        tenantId=run.key.tenant_id,
        runId=run.key.run_id,
        status=run.status,
        createdAt=format_instant(run.created_at),
        openJobs=run.open_jobs,
        unresolvedGroups=run.open_groups,
        settledAt=format_optional(run.settled_at),
        code=run.flaw_code,
        path=path,
        damaged=damaged,
    )


async def _get(reader: Reader, tenant: str, request: GetRun, _now: int) -> RawJson:
    key = RunKey(tenant, request.run_id)
    start = _Start(*read_cursor(request.cursor, str, str)) if request.cursor is not None else _Start("", "")
    run = await loader.find_run(reader, key)
    if run is None or not run.started:
        raise Rejection(Code.NOT_FOUND, f"no run {request.run_id!r}")
    counts = await reader.fetch(_SQL["counts"], key._asdict())
    rows = await reader.fetch(_SQL["groups_of_run"], key._asdict())
    groups = {row["group_name"]: row["resolved_at"] is not None for row in rows}
    head = {**run_view(run), "counts": {row["status"]: row["count"] for row in counts}, "groups": groups}
    jobs, cursor = await _jobs(reader, key, groups, start, request.limit)
    return write_object({**head, **omit_none(cursor=cursor)}, {"jobs": jobs})


async def _list(reader: Reader, tenant: str, request: ListRuns, _now: int) -> RawJson:
    and_status = "" if request.status is None else f"AND status = '{request.status}'"
    sql = _SQL["page"].format(and_status=and_status)

    async def read(before: tuple[int, str], limit: int) -> Sequence[Run]:
        before_at, before_id = before
        parameters = {"tenant_id": tenant, "before_at": before_at, "before_id": before_id, "limit": limit}
        return [store.read_run(row) for row in await reader.fetch(sql, parameters)]

    before_at, before_id = _NEWER_THAN_ALL if request.cursor is None else read_cursor(request.cursor, int, str)
    return await read_page(
        "runs",
        read,
        after=(before_at, before_id),
        limit=request.limit,
        view=run_view,
        cursor_of=lambda run: (run.created_at, run.key.run_id),
    )


QUERIES = (
    QueryRoute("get-run", GetRun, RunDetails, _get),
    QueryRoute("list-runs", ListRuns, RunPage, _list),
)


class _Start(NamedTuple):
    """The start of a page of jobs: a job, and the last need of that job that was shown before."""

    job_name: str
    after: str


async def _jobs(
    reader: Reader, key: RunKey, groups: Mapping[str, bool], start: _Start, limit: int
) -> tuple[RawJson, str | None]:
    """Return a page of at most `limit` jobs that fits into one reply, and a cursor if there are more.

    If the needs of a job do not fit, the next page shows the job again with its next needs.
    """
    shown: list[RawJson] = []
    used = 0
    while True:
        count = min(next_step(len(shown), used), limit - len(shown))
        rows = await reader.fetch(_SQL["page_of_jobs"], {**key._asdict(), "first": start.job_name, "limit": count + 1})
        needs = await _read_needs(reader, key, _first_jobs(rows[:count]), groups, start)
        for row in rows[: len(needs)]:
            view = _job_view(row, needs[row["job_name"]], PAGE_BYTES - used)
            if shown and used + view.size > PAGE_BYTES:
                return write_list(shown), write_cursor([row["job_name"], ""])
            shown.append(view.json)
            used += view.size
            if view.more_after is not None:
                return write_list(shown), write_cursor([row["job_name"], view.more_after])
        if len(needs) == len(rows):
            return write_list(shown), None
        start = _Start(rows[len(needs)]["job_name"], "")
        if len(shown) == limit:
            return write_list(shown), write_cursor(start)


class _Needs(NamedTuple):
    """The needs of one job."""

    groups: list[Mapping[str, str]]
    """The groups that are not resolved."""
    jobs: list[Mapping[str, str]]
    """The next jobs, ordered by name."""
    damaged: Sequence[str] = ()


def _first_jobs(rows: Sequence[Row]) -> list[str]:
    """Return the names of the first jobs whose needs fit into one read, at least one."""
    totals = accumulate(row["needs_size"] or 0 for row in rows)
    return [
        row["job_name"]
        for number, (row, total) in enumerate(zip(rows, totals, strict=True))
        if number == 0 or total <= _NEEDS_PER_READ
    ]


async def _read_needs(
    reader: Reader, key: RunKey, jobs: Sequence[str], groups: Mapping[str, bool], start: _Start
) -> Mapping[str, _Needs]:
    """Read the needs of some jobs. For the first job of the page, return only the needs after the start."""
    needs = {name: _Needs([], []) for name in jobs}
    for row in await reader.fetch_each(_SQL["needs"], [{**key._asdict(), "job_name": name} for name in jobs]):
        name = row["job_name"]
        after = start.after if name == start.job_name else ""
        try:
            found = read_needs(row["needs"])
        except (ValueError, AttributeError):  # no JSON, or no object
            needs[name] = needs[name]._replace(damaged=["needs"])
            continue
        needs[name].jobs.extend(
            {"job": upstream, "ifFailed": if_failed} for upstream, if_failed in found if upstream > after
        )
    if False in groups.values():
        named = [{**key._asdict(), "job_name": name} for name in needs if name != start.job_name or not start.after]
        for row in await reader.fetch_each(_SQL["group_needs_of_job"], named):
            if groups.get(row["group_name"]) is False:  # otherwise it is resolved, or retention has deleted it
                needs[row["job_name"]].groups.append({"group": row["group_name"], "ifFailed": row["if_failed"]})
    return needs


class _JobView(NamedTuple):
    """The JSON of a job, and its size in bytes. The size is larger than the room if not all needs fit."""

    json: RawJson
    size: int
    more_after: str | None
    """The last need in the view, if the job has more needs."""


def _job_view(row: Row, needs: _Needs, room: int) -> _JobView:
    """Return the view of a job with the needs that fit into `room` bytes, at least one need."""
    fields = omit_none(
        name=row["job_name"],
        status=row["status"],
        groupName=row["group_name"],
        readyAt=format_optional(row["ready_at"]),
        settledAt=format_optional(row["settled_at"]),
        reason=row["reason"],
    )
    size = len(to_json(fields)) + (row["outputs_bytes"] or 0) + len(to_json(needs.groups)) + _NEEDS_OVERHEAD
    fitting = 0
    for need in needs.jobs:
        size += len(to_json(need)) + 1
        if fitting and size > room:
            break
        fitting += 1
    shown = needs.jobs[:fitting]
    more = fitting < len(needs.jobs)
    fields = {**fields, "needs": [*shown, *needs.groups], **({"moreNeeds": True} if more else {})}
    view = write_view(fields, {"outputs": row["outputs"]}, needs.damaged)
    return _JobView(view, size, shown[-1]["job"] if more else None)
