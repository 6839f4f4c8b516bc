"""The queries about runs. A tenant sees only its own runs."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic import Field
from pydantic_core import from_json, to_json

from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.sql import load_sql
from timer_service.core.requests.computing import Steps
from timer_service.core.requests.query import QueryRoute, omit_none
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import LATEST, Instant, format_instant, format_optional
from timer_service.core.values.message import Identifier, Payload, Tenant
from timer_service.core.values.paging import (
    PAGE_BYTES,
    PageCursor,
    PageLimit,
    next_step,
    read_cursor,
    read_page,
    write_cursor,
)
from timer_service.core.values.stored_json import (
    RawJson,
    quote,
    write,
    write_list,
    write_object,
    write_view,
)
from timer_service.runs import loader, store
from timer_service.runs.edges import read_needs
from timer_service.runs.messages import FlawCode, GroupNeed, JobNeed, JobStatus, RunStatus
from timer_service.runs.rules import Run, RunKey

_SQL = load_sql("timer_service.runs", "queries.sql")
_NEEDS_PER_PAGE = 64 * 1024
"""How many characters of stored needs a page reads, of all its jobs: at most 16,384 needs. A single job may have more
characters, and has at most 10,000 needs.
"""
_NEEDS_PER_STEP = 1000
_NEED_OVERHEAD = 30
"""The bytes of the field names and of `ifFailed` in the view of a need."""
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
    return omit_none(
        tenantId=run.key.tenant_id,
        runId=run.key.run_id,
        status=run.status,
        createdAt=format_instant(run.created_at),
        openJobs=run.open_jobs,
        unresolvedGroups=run.open_groups,
        settledAt=format_optional(run.settled_at),
        code=run.flaw_code,
        path=None if run.flaw_path is None else from_json(run.flaw_path),
    )


async def _get(reader: Reader, tenant: str, request: GetRun, _now: int) -> Steps[RawJson]:
    key = RunKey(tenant, request.run_id)
    start = _Start(*read_cursor(request.cursor, str, str)) if request.cursor is not None else _Start("", "")
    run = (await loader.find_runs(reader, [key])).get(key)
    if run is None or not run.started:
        raise Rejection(Code.NOT_FOUND, f"no run {request.run_id!r}")
    counts = await reader.fetch(_SQL["counts"], key._asdict())
    rows = await reader.fetch(_SQL["groups_of_run"], key._asdict())
    groups = {row["group_name"]: row["resolved_at"] is not None for row in rows}
    head = {**run_view(run), "counts": {row["status"]: row["count"] for row in counts}, "groups": groups}
    return _write_page(head, await _read_jobs(reader, key, groups, start, request.limit), start)


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


class _StoredJobs(NamedTuple):
    """The jobs of a page as they are stored. Not all of them may fit on the page."""

    rows: Sequence[Row]
    needs: Mapping[str, str]
    """The JSON of the jobs that a job needs, by job."""
    groups: Mapping[str, Sequence[Mapping[str, str]]]
    """The groups that are not resolved and that a job needs, by job."""
    next_job: str | None
    """The job after these, if there is one."""


async def _read_jobs(reader: Reader, key: RunKey, groups: Mapping[str, bool], start: _Start, limit: int) -> _StoredJobs:
    """Read at most `limit` jobs, as many as may fit on a page, and their needs."""
    rows: list[Row] = []
    needs: dict[str, str] = {}
    group_needs: dict[str, list[Mapping[str, str]]] = {}
    first, size, room = start.job_name, 0, _NEEDS_PER_PAGE
    while True:
        count = min(next_step(len(rows), size), limit - len(rows))
        found = await reader.fetch(_SQL["page_of_jobs"], {**key._asdict(), "first": first, "limit": count + 1})
        taken = _first_jobs(found[:count], room, least=0 if rows else 1)
        names = [row["job_name"] for row in taken]
        needs |= await _read_needs(reader, key, names)
        if False in groups.values():
            named = [name for name in names if name != start.job_name or not start.after]
            group_needs |= await _read_group_needs(reader, key, named, groups)
        rows += taken
        room -= sum(_needs_size(row) for row in taken)
        size += sum(_least_size(row, group_needs.get(row["job_name"], ())) for row in taken)
        if len(taken) == len(found):
            return _StoredJobs(rows, needs, group_needs, None)
        first = found[len(taken)]["job_name"]
        if len(taken) < count or len(rows) == limit or size >= PAGE_BYTES:
            return _StoredJobs(rows, needs, group_needs, first)


def _first_jobs(rows: Sequence[Row], room: int, least: int) -> Sequence[Row]:
    """Return the first jobs whose needs have at most `room` characters together, and no fewer than `least` jobs."""
    totals = accumulate(_needs_size(row) for row in rows)
    return rows[: max(sum(total <= room for total in totals), least)]


def _needs_size(row: Row) -> int:
    size: int | None = row["needs_size"]
    return size or 0


def _least_size(row: Row, groups: Sequence[Mapping[str, str]]) -> int:
    """Return how many bytes the view of a job has at least."""
    in_groups = sum(len(each["group"]) + _NEED_OVERHEAD for each in groups)
    return len(row["job_name"]) + (row["outputs_bytes"] or 0) + _needs_size(row) + in_groups + _NEEDS_OVERHEAD


async def _read_needs(reader: Reader, key: RunKey, jobs: Sequence[str]) -> Mapping[str, str]:
    """Return the JSON of the jobs that some jobs need, by job."""
    rows = await reader.fetch_each(_SQL["needs"], [{**key._asdict(), "job_name": name} for name in jobs])
    return {row["job_name"]: row["needs"] for row in rows}


async def _read_group_needs(
    reader: Reader, key: RunKey, jobs: Sequence[str], groups: Mapping[str, bool]
) -> Mapping[str, list[Mapping[str, str]]]:
    """Return the groups that are not resolved and that some jobs need, by job."""
    needs: dict[str, list[Mapping[str, str]]] = {}
    for row in await reader.fetch_each(
        _SQL["group_needs_of_job"], [{**key._asdict(), "job_name": name} for name in jobs]
    ):
        if groups.get(row["group_name"]) is False:  # otherwise it is resolved, or retention has deleted it
            needs.setdefault(row["job_name"], []).append({"group": row["group_name"], "ifFailed": row["if_failed"]})
    return needs


def _write_page(head: Mapping[str, Any], jobs: _StoredJobs, start: _Start) -> Steps[RawJson]:
    """Return the reply with the jobs that fit into it, and a cursor if there are more.

    If the needs of a job do not fit, the next page shows the job again with its next needs.
    """
    shown: list[RawJson] = []
    used = 0
    cursor = None if jobs.next_job is None else write_cursor([jobs.next_job, ""])
    for row in jobs.rows:
        name = row["job_name"]
        needs = _read_page_needs(jobs.needs.get(name), start.after if name == start.job_name else "")
        view = yield from _write_job(row, needs, jobs.groups.get(name, ()), PAGE_BYTES - used)
        if shown and used + view.size > PAGE_BYTES:
            cursor = write_cursor([name, ""])
            break
        shown.append(view.json)
        used += view.size
        if view.more_after is not None:
            cursor = write_cursor([name, view.more_after])
            break
    return write_object({**head, **omit_none(cursor=cursor)}, {"jobs": write_list(shown)})


_Needs = Sequence[tuple[str, str]]
"""The next jobs that a job needs, ordered by name."""


def _read_page_needs(text: str | None, after: str) -> _Needs:
    """Return the stored needs after a job."""
    found = () if text is None else read_needs(text)
    return found[bisect_right(found, after, key=itemgetter(0)) :] if after else found


class _JobView(NamedTuple):
    """The JSON of a job, and its size in bytes. The size is larger than the room if not all needs fit."""

    json: RawJson
    size: int
    more_after: str | None
    """The last need in the view, if the job has more needs."""


def _write_job(row: Row, needs: _Needs, groups: Sequence[Mapping[str, str]], room: int) -> Steps[_JobView]:
    """Return the view of a job with the needs that fit into `room` bytes, at least one need."""
    fields = omit_none(
        name=row["job_name"],
        status=row["status"],
        groupName=row["group_name"],
        readyAt=format_optional(row["ready_at"]),
        settledAt=format_optional(row["settled_at"]),
        reason=row["reason"],
    )
    in_groups = [write(each) for each in groups]
    size = len(to_json(fields)) + (row["outputs_bytes"] or 0) + _NEEDS_OVERHEAD
    size += sum(len(each.encode()) + 1 for each in in_groups)
    shown: list[RawJson] = []
    more_after = None
    for number, (job, if_failed) in enumerate(needs, 1):
        # A member of an enum takes four times as long to write as its text.
        need = RawJson(f'{{"job":{quote(job)},"ifFailed":"{if_failed}"}}')
        size += len(need.encode()) + 1
        if shown and size > room:
            more_after = needs[number - 2][0]
            break
        shown.append(need)
        if number % _NEEDS_PER_STEP == 0:
            yield
    if more_after is not None:
        fields = {**fields, "moreNeeds": True}
    view = write_view(fields, {"needs": write_list([*shown, *in_groups]).text, "outputs": row["outputs"]})
    yield
    return _JobView(view, size, more_after)
