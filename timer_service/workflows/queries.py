"""Queries about workflows and workers. A tenant sees only its own. Lease tokens are never shown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.sql import load_sql
from timer_service.core.requests.query import QueryRoute
from timer_service.core.service.workflow_start import concurrency_view
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import format_instant, format_optional
from timer_service.core.values.paging import read_cursor, read_in_turn, read_page
from timer_service.core.values.stored_json import RawJson, omit_none, write_view
from timer_service.workflows import effect_store, store
from timer_service.workflows.effect import Effect
from timer_service.workflows.keys import name_of
from timer_service.workflows.messages import ENDED, WorkflowStatus
from timer_service.workflows.views import (
    CountWorkflows,
    GetWorkflow,
    ListWorkers,
    ListWorkflows,
    WorkerPage,
    WorkflowCounts,
    WorkflowDetail,
    WorkflowPage,
)
from timer_service.workflows.workflow import Key, Texts, Workflow

_SQL = {
    name: text.replace("{columns}", ", ".join(store.COLUMNS))
    for name, text in load_sql("timer_service.workflows", "queries.sql").items()
}
ONLINE_MS = 60_000
"""A worker counts as offline if it was not seen for so long. One without free slots sends a request each 25 s, and the
registry can leave out one of two."""
MOST_COUNTED = 1_000_000
LOOKED_AT = 10_000
"""How many workflows of one index a page looks at. No index has the type, or the status of open workflows."""
_MOST_WORKERS = 1000
"""How many workers of a queue are looked at."""


_MOST_MESSAGES = 3
_LONGEST_ERROR = 200
"""A list shows so many messages of a workflow, and so many characters of an error."""


class _Place(NamedTuple):
    """A place in a list, which has the newest workflow first."""

    created_at: int
    workflow_id: str


_FIRST, _LAST = _Place(2**62, ""), _Place(-1, "")
_OPEN = "ended_at IS NULL"
"""The WHERE clause of open workflows. It must equal the predicate of a partial index, like that of `_where_ended`."""


def workflow_view(workflow: Workflow, **more: Any) -> RawJson:
    """Return the view of a workflow for replies, with more fields: the fields that are not None."""
    definition, hold = workflow.definition, workflow.hold
    assert definition is not None  # noqa: S101 - only started ones are shown
    fields = omit_none(
        tenantId=workflow.key.tenant_id,
        workflowId=workflow.key.workflow_id,
        type=definition.workflow_type,
        queue=definition.queue,
        status=workflow.status,
        createdAt=format_instant(workflow.created_at),
        dueAt=format_optional(workflow.due_at),
        deadlineAt=format_optional(definition.deadline_at),
        endedAt=format_optional(workflow.ended_at),
        attempt=workflow.attempt,
        retries=workflow.retries,
        effects=workflow.effects,
        messages=workflow.messages,
        workerId=None if hold is None else hold.worker_id,
        claimedAt=None if hold is None else format_instant(hold.claimed_at),
        blockedBy=(workflow.last_error or "") if workflow.is_blocked else None,
        **concurrency_view(definition.concurrency),
        code=workflow.failure_code,
        step=workflow.failed_step,
        reason=workflow.reason,
        **more,
    )
    return write_view(fields, {"retry": definition.retry})


def _effect_view(effect: Effect) -> RawJson:
    fields = omit_none(
        key=effect.key.text,
        kind=effect.kind,
        status=effect.status,
        seq=effect.seq,
        failures=effect.failures,
        dueAt=format_optional(effect.due_at),
    )
    return write_view(fields, {"result": effect.result, "error": effect.error})


async def _get(reader: Reader, tenant: str, request: GetWorkflow, now: int) -> RawJson:
    """Return a workflow, its texts and a page of its effects."""
    key = Key(tenant, request.workflow_id)
    workflow = (await store.find(reader, [key])).get(key)
    if workflow is None or workflow.definition is None:
        raise Rejection(Code.NOT_FOUND, f"no workflow {request.workflow_id!r}")
    after = effect_store.parse_cursor(request.cursor)
    texts = (await store.find_texts(reader, [key])).get(key, Texts())
    page = await read_page(
        "effects",
        partial(effect_store.page, reader, key),
        after=after,
        limit=request.limit,
        view=_effect_view,
        cursor_of=effect_store.cursor_of,
    )
    behind = await _find_behind(reader, [workflow])
    stored = {
        "workflow": workflow_view(workflow, queuedBehind=behind.get(key)).text,
        "input": texts.input,
        "result": texts.result,
        "failure": texts.error,  # not `error`: that is the field of a reply that is an error
    }
    _, queue, workflow_type = workflow.lane
    has_workers = workflow_type in await _types_of(reader, tenant, queue, now)
    head = write_view({"hasWorkers": has_workers}, stored)
    return RawJson(f"{head.text[:-1]},{page.text[1:]}")


async def _find_behind(reader: Reader, workflows: Iterable[Workflow]) -> dict[Key, str]:
    """Return the workflow that is directly before each queued one."""
    queued = [each for each in workflows if each.key_place is not None]
    parameters = [
        {**name._asdict(), "place": each.key_place, "number": number}
        for number, each in enumerate(queued)
        if (name := name_of(each)) is not None
    ]
    rows = await reader.fetch_each(_SQL["behind"], parameters)
    return {queued[row["number"]].key: row["workflow_id"] for row in rows if row["workflow_id"] is not None}


async def _types_of(reader: Reader, tenant: str, queue: str, now: int) -> set[str]:
    """Return the types for which workers of a queue ask that are online."""
    parameters = {"tenant_id": tenant, "queue": queue, "since": now - ONLINE_MS, "limit": _MOST_WORKERS}
    rows = await reader.fetch(_SQL["types_of_queue"], parameters)
    return {each for row in rows for each in json.loads(row["types"])}


class _Listed(NamedTuple):
    workflow: Workflow
    more: Mapping[str, Any]
    """The fields that only `ListedWorkflow` has."""


async def _explain(
    reader: Reader, workflows: Sequence[Workflow], types: dict[str, set[str]], now: int
) -> Sequence[_Listed]:
    """Return workflows with what they wait for, or why they failed. `types` keeps the types of workers by queue."""
    keys = {status: [each.key for each in workflows if each.status is status] for status in WorkflowStatus}
    texts = await store.find_texts(reader, keys[WorkflowStatus.FAILED])
    messages = await effect_store.find_waits(reader, keys[WorkflowStatus.PARKED], _MOST_MESSAGES)
    behind = await _find_behind(reader, workflows)
    found = []
    for each in workflows:
        tenant, queue, workflow_type = each.lane
        more: dict[str, Any] = {"waitsFor": messages.get(each.key), "queuedBehind": behind.get(each.key)}
        if each.status is WorkflowStatus.WAITING:
            if queue not in types:
                types[queue] = await _types_of(reader, tenant, queue, now)
            more["hasWorkers"] = workflow_type in types[queue]
        if (error := texts.get(each.key, Texts()).error) is not None:
            more["failure"] = {name: text[:_LONGEST_ERROR] for name, text in json.loads(error).items()}
        found.append(_Listed(each, more))
    return found


async def _list(reader: Reader, tenant: str, request: ListWorkflows, now: int) -> RawJson:
    """Return a page of workflows: first those that are open, then those that have ended, each from their indexes."""
    after = (0, *_FIRST) if request.cursor is None else read_cursor(request.cursor, int, int, str)
    is_open = request.status not in ENDED
    lists = [[_OPEN] if is_open else [], [_where_ended(status) for status in _ended(request.status)]]
    # Without an index for the filters, rows that do not match are looked at, too.
    has_index = request.workflow_type is None and (request.status is None or request.status in ENDED)
    end = None if has_index else await _find_end(reader, tenant, after, lists)
    filters = {"tenant_id": tenant, "status": request.status or "", "type": request.workflow_type or ""}

    types: dict[str, set[str]] = {}

    async def read(number: int, place: Sequence[Any], limit: int) -> Sequence[_Listed]:
        """Return the next workflows of all indexes of a list, in order; none behind the end."""
        if end is not None and number > end[0]:
            return []
        end_at, end_id = _LAST if end is None or number < end[0] else end[1:]
        bounds = {**_Place(*place)._asdict(), "end_at": end_at, "end_id": end_id, "limit": limit}
        statements = [_SQL["page"].format(where=where) for where in lists[number]]
        found = [row for sql in statements for row in await reader.fetch(sql, {**filters, **bounds})]
        shown = sorted(map(store.read_workflow, found), key=_cursor_of, reverse=True)[:limit]
        return await _explain(reader, shown, types, now)

    return await read_page(
        "workflows",
        read_in_turn([(_FIRST, partial(read, number)) for number in range(len(lists))]),
        after=after,
        limit=request.limit,
        view=lambda each: workflow_view(each.workflow, **each.more),
        cursor_of=lambda each: _cursor_of(each.workflow),
        end=end,
    )


async def _find_end(
    reader: Reader, tenant: str, after: Sequence[Any], lists: Sequence[Sequence[str]]
) -> tuple[int, int, str] | None:
    """Return the last place at which a page may look, so that it looks at `LOOKED_AT` workflows of each index at most.

    None: there are no more workflows than that. The newest come first, so the nearest place is the greatest.
    """
    for number in (each for each in range(len(lists)) if each >= after[0]):
        place = _Place(*after[1:]) if number == after[0] else _FIRST
        parameters = {"tenant_id": tenant, **place._asdict(), "skipped": LOOKED_AT - 1}
        statements = [_SQL["page_end"].format(where=where) for where in lists[number]]
        rows = [row for sql in statements for row in await reader.fetch(sql, parameters)]
        if rows:
            return (number, *max((row["created_at"], row["workflow_id"]) for row in rows))
    return None


def _where_ended(status: WorkflowStatus) -> str:
    """Return the WHERE clause of workflows that ended in one way."""
    return f"status = '{status}' AND ended_at IS NOT NULL AND type IS NOT NULL"


def _ended(status: WorkflowStatus | None) -> list[WorkflowStatus]:
    """Return the statuses of ended workflows that a filter admits."""
    return [each for each in WorkflowStatus if each in ENDED and status in {None, each}]


def _cursor_of(workflow: Workflow) -> tuple[int, int, str]:
    return int(workflow.ended_at is not None), workflow.created_at, workflow.key.workflow_id


async def _count(reader: Reader, tenant: str, _request: CountWorkflows, _now: int) -> Mapping[str, Any]:
    """Return the number of workflows in each status. All open ones and each kind of ended ones count up to a limit."""
    parameters = {"tenant_id": tenant, "limit": MOST_COUNTED}
    counts = dict.fromkeys(WorkflowStatus, 0)
    for row in await reader.fetch(_SQL["count_open"], parameters):
        counts[WorkflowStatus(row["status"])] = row["count"]
    is_exact = sum(counts.values()) < MOST_COUNTED
    for status in _ended(None):
        (row,) = await reader.fetch(_SQL["count_ended"].replace("{status}", status), parameters)
        counts[status] = row["count"]
        is_exact = is_exact and row["count"] < MOST_COUNTED
    return {"counts": counts, "exact": is_exact}


async def _list_workers(reader: Reader, tenant: str, request: ListWorkers, now: int) -> RawJson:
    """Return a page of workers."""
    (after,) = ("",) if request.cursor is None else read_cursor(request.cursor, str)

    async def read(after: tuple[str], limit: int) -> Sequence[Row]:
        parameters = {"tenant_id": tenant, "worker_id": after[0], "limit": limit}
        return await reader.fetch(_SQL["page_workers"], parameters)

    def view(row: Row) -> RawJson:
        fields = omit_none(
            workerId=row["worker_id"],
            name=row["name"],
            queue=row["queue"],
            slots=row["slots"],
            firstSeenAt=format_instant(row["first_seen_at"]),
            seenAt=format_instant(row["seen_at"]),
            online=row["seen_at"] > now - ONLINE_MS,
        )
        return write_view(fields, {"types": row["types"]})

    return await read_page(
        "workers", read, after=(after,), limit=request.limit, view=view, cursor_of=lambda row: (row["worker_id"],)
    )


QUERIES = (
    QueryRoute("get-workflow", GetWorkflow, WorkflowDetail, _get),
    QueryRoute("list-workflows", ListWorkflows, WorkflowPage, _list),
    QueryRoute("count-workflows", CountWorkflows, WorkflowCounts, _count),
    QueryRoute("list-workers", ListWorkers, WorkerPage, _list_workers),
)
