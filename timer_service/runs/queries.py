"""Questions about runs. A tenant only ever sees its own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from timer_service.core.database import Reader, Row
from timer_service.core.errors import Code, Rejection
from timer_service.core.instant import LATEST, Instant, format_instant, format_known
from timer_service.core.message import Identifier, Payload, Tenant
from timer_service.core.paging import PageCursor, PageLimit, page, read_cursor
from timer_service.core.query import QueryRoute, known
from timer_service.runs import store
from timer_service.runs.messages import FlawCode, GroupNeed, JobNeed, JobStatus, RunStatus
from timer_service.runs.rules import Run, RunKey

_NEWER_THAN_ALL = (LATEST + 1, "")


class GetRun(Payload):
    """Ask for one run with its jobs, in order of their names, a page at a time."""

    run_id: Identifier
    limit: PageLimit = 1000
    cursor: PageCursor | None = None


class ListRuns(Payload):
    """Ask for runs, newest first, a page at a time."""

    status: RunStatus | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class RunView(Payload):
    """A run as replies and answers show it."""

    tenant_id: Tenant
    run_id: Identifier
    status: RunStatus
    created_at: Instant
    open_jobs: int = Field(ge=0, description="Jobs that have not ended.")
    unresolved_groups: int = Field(ge=0)
    settled_at: Instant | None = None
    code: FlawCode | None = Field(default=None, description="Why it was rejected.")
    path: list[str] | None = Field(default=None, description="The jobs at fault.")


class JobView(Payload):
    """A job of a run. With `readyAt`, everything it needs has ended as it should, and its JobReady has gone out."""

    name: Identifier
    status: JobStatus
    needs: list[JobNeed | GroupNeed] = Field(description="Of groups those not resolved; of others, their jobs.")
    group_name: Identifier | None = None
    ready_at: Instant | None = None
    settled_at: Instant | None = None
    reason: str | None = None
    outputs: dict[str, Any] | None = None


class RunDetails(RunView):
    """A run with its jobs in order of their names. With `cursor`, there are more jobs: ask again with it."""

    counts: Mapping[JobStatus, int]
    groups: Mapping[str, bool] = Field(description="Whether each dynamic group is resolved.")
    jobs: list[JobView]
    cursor: str | None = None


class RunPage(Payload):
    """Runs, newest first. With `cursor`, there are more: ask again with it and the same filters."""

    runs: list[RunView]
    cursor: str | None = None


def run_view(run: Run) -> Mapping[str, Any]:
    """Return a run as replies and queries show it."""
    return known(
        tenantId=run.key.tenant_id,
        runId=run.key.run_id,
        status=run.status,
        createdAt=format_instant(run.created_at),
        openJobs=run.open_jobs,
        unresolvedGroups=run.open_groups,
        settledAt=format_known(run.settled_at),
        code=run.flaw_code,
        path=None if run.flaw_path is None else from_json(run.flaw_path),
    )


async def _get(reader: Reader, tenant: str, question: GetRun, _now: int) -> Mapping[str, Any]:
    (after,) = read_cursor(question.cursor, str) if question.cursor is not None else ("",)
    key = RunKey(tenant, question.run_id)
    run = await store.find_run(reader, key)
    if run is None or run.status is None:
        raise Rejection(Code.NOT_FOUND, f"no run {question.run_id!r}")
    jobs = await store.page_of_jobs(reader, key, after, question.limit + 1)
    groups = {row["group_name"]: row["resolved_at"] is not None for row in await store.groups(reader, key)}
    needs = await _needs(reader, key, jobs, groups)
    counts = await store.counts(reader, [key])
    return {
        **run_view(run),
        "counts": counts[key],
        "groups": groups,
        **page("jobs", jobs, limit=question.limit, view=partial(_job_view, needs), place=lambda row: [row["job_name"]]),
    }


async def _list(reader: Reader, tenant: str, question: ListRuns, _now: int) -> Mapping[str, Any]:
    before = _NEWER_THAN_ALL if question.cursor is None else read_cursor(question.cursor, int, str)
    found = await store.page(reader, tenant, question.status, before, question.limit + 1)
    return page("runs", found, limit=question.limit, view=run_view, place=lambda run: [run.created_at, run.key.run_id])


QUERIES = (
    QueryRoute("get-run", GetRun, RunDetails, _get),
    QueryRoute("list-runs", ListRuns, RunPage, _list),
)


async def _needs(
    reader: Reader, key: RunKey, jobs: Sequence[Row], groups: Mapping[str, bool]
) -> Mapping[str, list[Mapping[str, str]]]:
    needs: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    concrete, of_groups = await store.needs_of_jobs(reader, [(key, row["job_name"]) for row in jobs])
    for row in concrete:
        needs[row["job_name"]].append({"job": row["upstream_name"], "ifFailed": row["if_failed"]})
    for row in of_groups:
        if not groups[row["group_name"]]:
            needs[row["job_name"]].append({"group": row["group_name"], "ifFailed": row["if_failed"]})
    return needs


def _job_view(needs: Mapping[str, list[Mapping[str, str]]], row: Row) -> Mapping[str, Any]:
    return known(
        name=row["job_name"],
        status=row["status"],
        needs=needs.get(row["job_name"], []),
        groupName=row["group_name"],
        readyAt=format_known(row["ready_at"]),
        settledAt=format_known(row["settled_at"]),
        reason=row["reason"],
        outputs=None if row["outputs"] is None else from_json(row["outputs"]),
    )
