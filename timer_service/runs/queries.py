"""The queries about runs. A tenant sees only its own runs."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic import Field
from pydantic_core import from_json, to_json

from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.sql import load_sql
from timer_service.core.requests.computing import Steps
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import LATEST, Instant, format_instant, format_optional
from timer_service.core.values.message import Identifier, Payload, Tenant
from timer_service.core.values.paging import (
    PAGE_BYTES,
    PageCursor,
    PageLimit,
    next_step,
    read_cursor,
    read_in_turn,
    read_page,
    write_cursor,
)
from timer_service.core.values.stored_json import (
    RawJson,
    omit_none,
    quote,
    read_stored,
    write,
    write_list,
    write_object,
)
from timer_service.runs import loader, store
from timer_service.runs.graph import read_needs
from timer_service.runs.messages import FlawCode, GroupNeed, IfFailed, JobNeed, JobStatus, LaterAttempt, RunStatus
from timer_service.runs.rules import OPEN, Run, RunKey
from timer_service.runs.store import JobKey

_SQL = load_sql("timer_service.runs", "queries.sql")
_JOB_BYTES = 50
"""The bytes of the field names of a job."""
_NEWER_THAN_ALL = (LATEST + 1, "")
_LISTS = (RunStatus.RUNNING, RunStatus.CANCELLING, None)
"""The lists of which a list of runs consists, by status; None: of all runs that have ended."""


class GetRun(Payload):
    """Get one run and a page of its jobs, ordered by name."""

    run_id: Identifier
    limit: PageLimit = 1000
    cursor: PageCursor | None = None


class ListRuns(Payload):
    """List a page of started runs: open ones, and then those that have ended, each newest first."""

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
    attempt: LaterAttempt | None = None


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
    always: bool | None = None
    attempt: LaterAttempt | None = None
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
    """A page of runs. `cursor` is set if there are more runs; use it with the same filters."""

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
        attempt=_later(run.attempt),
    )


def _later(attempt: int) -> int | None:
    """Return an attempt as it is shown: the first one is not."""
    return attempt if attempt > 1 else None


async def _list(reader: Reader, tenant: str, request: ListRuns, _now: int) -> RawJson:
    """Return a page of runs: those that are running, are being cancelled, and have ended, each newest first."""

    async def read(status: RunStatus | None, place: tuple[int, str], limit: int) -> Sequence[Run]:
        """Return the next runs in a status, or of all that have ended, if the request wants them."""
        if request.status is not None and _list_of(request.status) != status:
            return []
        one = request.status or status
        where = "settled_at IS NOT NULL" if one is None else f"status = '{one}'"
        before_at, before_id = place
        parameters = {"tenant_id": tenant, "before_at": before_at, "before_id": before_id, "limit": limit}
        sql = _SQL["page"].format(columns=", ".join(store.RUN_COLUMNS), where=where)
        return [store.read_run(row) for row in await reader.fetch(sql, parameters)]

    return await read_page(
        "runs",
        read_in_turn([(_NEWER_THAN_ALL, partial(read, status)) for status in _LISTS]),
        after=(0, *_NEWER_THAN_ALL) if request.cursor is None else read_cursor(request.cursor, int, int, str),
        limit=request.limit,
        view=run_view,
        cursor_of=lambda run: (_LISTS.index(_list_of(run.status)), run.created_at, run.key.run_id),
    )


def _list_of(status: RunStatus | None) -> RunStatus | None:
    return status if status in OPEN else None


class _Start(NamedTuple):
    """The start of a page of jobs: a job, and the last need of that job that was shown before."""

    job_name: str
    after: str


class _StoredJobs(NamedTuple):
    """The jobs of a page as they are stored. Not all of them may fit on the page."""

    rows: Sequence[Row]
    needs: Mapping[JobKey, str]
    groups: Mapping[str, Sequence[str]]
    """The JSON of the groups that are not resolved and that a job needs, by job."""
    next_job: str | None
    """The job after these, if there is one."""


class _ShownJob(NamedTuple):
    """A job as a page shows it."""

    fields: Mapping[str, Any]
    needs: Sequence[str]
    """The JSON of the jobs that it needs, without those that an earlier page has shown."""
    groups: Sequence[str]
    """The JSON of the open groups that it needs."""
    outputs: RawJson | None
    bytes_without_needs: int
    size: int
    """Its bytes with all needs."""

    def count_fitting(self, room: int) -> int:
        """Return how many needs fit into the bytes `room` together with the job."""
        return bisect_right(list(accumulate(_bytes([need]) for need in self.needs)), room - self.bytes_without_needs)

    def write(self, count: int) -> RawJson:
        """Return its JSON with the first needs. `moreNeeds` says whether the next page has others."""
        fields = {**self.fields, "moreNeeds": True} if count < len(self.needs) else self.fields
        needs = RawJson(f"[{','.join([*self.needs[:count], *self.groups])}]")
        return write_object(fields, {"needs": needs, "outputs": self.outputs})


async def _get(reader: Reader, tenant: str, request: GetRun, _now: int) -> Steps[RawJson]:
    """Return a run and a page of its jobs."""
    key = RunKey(tenant, request.run_id)
    start = _Start(*read_cursor(request.cursor, str, str)) if request.cursor is not None else _Start("", "")
    run = (await loader.find_runs(reader, [key])).get(key)
    if run is None or not run.started:
        raise Rejection(Code.NOT_FOUND, f"no run {request.run_id!r}")
    counts = (await loader.count_by_status(reader, [key]))[key]
    groups = (await loader.find_groups(reader, [key]))[key]
    rows, needs, next_job = await _read_jobs(reader, key, start.job_name, request.limit)
    unresolved = {name for name, group in groups.items() if group.resolved_at is None}
    # The earlier page of a job that is continued has shown the groups that it needs.
    begun = [row["job_name"] for row in rows if row["job_name"] != start.job_name or not start.after]
    group_needs = await _read_group_needs(reader, key, begun, unresolved) if unresolved else {}
    head = {**run_view(run), "counts": counts, "groups": {name: name not in unresolved for name in groups}}
    return _write_page(head, key, _StoredJobs(rows, needs, group_needs, next_job), start)


async def _read_jobs(
    reader: Reader, key: RunKey, first: str, limit: int
) -> tuple[Sequence[Row], Mapping[JobKey, str], str | None]:
    """Return at most `limit` jobs, as many as may fit on a page, their needs, and the next job if there is one.

    They are read in steps, each with one job more than it takes: the next one.
    """
    rows: list[Row] = []
    needs: dict[JobKey, str] = {}
    size = 0
    while True:
        count = min(next_step(len(rows), size), limit - len(rows))
        found = await reader.fetch(_SQL["page_of_jobs"], {**key._asdict(), "first": first, "limit": count + 1})
        of_step = await loader.find_needs(reader, [(key, row["job_name"]) for row in found[:count]])
        size += sum(map(len, of_step.values())) + sum(_JOB_BYTES + (row["outputs_bytes"] or 0) for row in found[:count])
        needs |= of_step
        rows += found[:count]
        if len(found) <= count:
            return rows, needs, None
        first = found[count]["job_name"]
        if len(rows) == limit or size >= PAGE_BYTES:
            return rows, needs, first


async def _read_group_needs(
    reader: Reader, key: RunKey, jobs: Sequence[str], groups: Collection[str]
) -> Mapping[str, Sequence[str]]:
    """Return the JSON of those of the `groups` that some jobs need, by job."""
    needs: dict[str, list[str]] = {}
    for row in await reader.fetch_each(
        _SQL["group_needs_of_job"], [store.job_parameters((key, name)) for name in jobs]
    ):
        if row["group_name"] in groups:
            need = write({"group": row["group_name"], "ifFailed": row["if_failed"]})
            needs.setdefault(row["job_name"], []).append(need.text)
    return needs


def _write_page(head: Mapping[str, Any], key: RunKey, jobs: _StoredJobs, start: _Start) -> Steps[RawJson]:
    """Return the reply with the jobs that fit into it, and a cursor if there are more.

    If the needs of a single job do not fit, the next page shows the job again with its next needs.
    """
    shown: list[RawJson] = []
    room = PAGE_BYTES
    next_start = None if jobs.next_job is None else _Start(jobs.next_job, "")
    for row in jobs.rows:
        needs = _needs_to_show(jobs, (key, row["job_name"]), start)
        job = _job_to_show(row, needs, jobs.groups.get(row["job_name"], ()))
        if shown and job.size > room:
            next_start = _Start(row["job_name"], "")
            break
        # The first job is shown although it does not fit, with one need at least.
        count = len(needs) if job.size <= room else max(job.count_fitting(room), 1)
        shown.append(job.write(count))
        if count < len(needs):
            next_start = _Start(row["job_name"], needs[count - 1][0])
            break
        room -= job.size
        yield
    cursor = None if next_start is None else write_cursor(next_start)
    return write_object({**head, **omit_none(cursor=cursor)}, {"jobs": write_list(shown)})


def _needs_to_show(jobs: _StoredJobs, key: JobKey, start: _Start) -> Sequence[tuple[str, IfFailed]]:
    """Return the needs of a job that no earlier page has shown."""
    needs = read_needs(jobs.needs.get(key, "{}"))
    is_continued = key[1] == start.job_name and start.after
    return needs[bisect_right(needs, start.after, key=itemgetter(0)) :] if is_continued else needs


def _job_to_show(row: Row, needs: Sequence[tuple[str, IfFailed]], groups: Sequence[str]) -> _ShownJob:
    """Return a stored job as a page shows it, with these needs."""
    fields = omit_none(
        name=row["job_name"],
        status=row["status"],
        groupName=row["group_name"],
        readyAt=format_optional(row["ready_at"]),
        settledAt=format_optional(row["settled_at"]),
        reason=row["reason"],
        always=bool(row["always"]) or None,
        attempt=_later(row["attempt"]),
    )
    # A member of an enum takes four times as long to write as its text.
    texts = [f'{{"job":{quote(job)},"ifFailed":"{if_failed}"}}' for job, if_failed in needs]
    without_needs = len(to_json(fields)) + (row["outputs_bytes"] or 0) + _JOB_BYTES + _bytes(groups)
    return _ShownJob(fields, texts, groups, read_stored(row["outputs"]), without_needs, without_needs + _bytes(texts))


def _bytes(texts: Sequence[str]) -> int:
    """Return the bytes of JSON texts in a list."""
    return sum(len(each.encode()) + 1 for each in texts)


QUERIES = (
    QueryRoute("get-run", GetRun, RunDetails, _get),
    QueryRoute("list-runs", ListRuns, RunPage, _list),
)
