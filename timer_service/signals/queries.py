"""Queries about signals, firings and tasks. A tenant sees only its own."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field

from timer_service.core.ports.database import Reader, Row
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import Instant, format_instant, format_optional
from timer_service.core.values.message import Identifier, Payload, Tenant
from timer_service.core.values.paging import PageCursor, PageLimit, read_cursor, read_in_turn, read_page
from timer_service.core.values.stored_json import RawJson, omit_none, write_view
from timer_service.signals import firing_store, store
from timer_service.signals.firing_store import Cursor
from timer_service.signals.firings import FiringStatus
from timer_service.signals.messages import TriggerKind
from timer_service.signals.signal import ItemKey, Key, Signal, Status
from timer_service.signals.triggers import Invalid

_BEGINNING = Cursor(-1, "")
_STATUSES = list(Status)


class GetSignal(Payload):
    """Ask for one signal by its id."""

    signal_id: Identifier


class ListSignals(Payload):
    """Ask for one page of signals, by status and id: those that have ended are the last."""

    status: Status | None = None
    work_item_id: Identifier | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class ListFirings(Payload):
    """Ask for one page of the firings of a signal, oldest first."""

    signal_id: Identifier
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class ListTasks(Payload):
    """Ask for one page of the follow-up tasks of a work item, oldest first."""

    work_item_id: Identifier
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class SignalView(Payload):
    """A signal in a reply to a command or a query."""

    tenant_id: Tenant
    signal_id: Identifier
    status: Status
    trigger_kind: TriggerKind
    trigger_spec: dict[str, Any]
    created_at: Instant
    trigger_error: str | None = Field(default=None, description="Why the trigger is invalid and never fires.")
    work_item_id: Identifier | None = None
    note: str | None = None
    last_fired_at: Instant | None = None
    last_error: str | None = Field(default=None, description="Why the last firing was given up.")


class SignalPage(Payload):
    """A page of signals, by status and id. If `cursor` is set, send it with the same filters for the next page."""

    signals: list[SignalView]
    cursor: str | None = None


class FiringView(Payload):
    """A firing: one cause that made the trigger of a signal true."""

    tenant_id: Tenant
    firing_id: Identifier
    signal_id: Identifier
    dedupe_key: Identifier
    status: FiringStatus
    due_at: Instant
    created_at: Instant
    attempt: int = Field(ge=0)
    work_item_id: Identifier | None = None
    task_id: Identifier | None = None
    settled_at: Instant | None = None
    last_error: str | None = None


class FiringPage(Payload):
    """A page of firings, oldest first. If `cursor` is set, send it for the next page."""

    firings: list[FiringView]
    cursor: str | None = None


class TaskView(Payload):
    """A follow-up task that a fired signal created for its work item."""

    tenant_id: Tenant
    task_id: Identifier
    work_item_id: Identifier
    signal_id: Identifier
    firing_id: Identifier
    created_at: Instant


class TaskPage(Payload):
    """A page of tasks, oldest first. If `cursor` is set, send it for the next page."""

    tasks: list[TaskView]
    cursor: str | None = None


def signal_view(signal: Signal) -> RawJson:
    """Return the view of a signal for replies."""
    definition = signal.definition
    trigger = definition.trigger
    fields = omit_none(
        tenantId=signal.key.tenant_id,
        signalId=signal.key.signal_id,
        status=signal.status,
        triggerKind=definition.trigger_kind,
        createdAt=format_instant(signal.created_at),
        triggerError=trigger.reason if isinstance(trigger, Invalid) else None,
        workItemId=definition.work_item_id,
        note=definition.note,
        lastFiredAt=format_optional(signal.fired_at),
        lastError=signal.last_error,
    )
    return write_view(fields, {"triggerSpec": definition.trigger_spec})


async def _get(reader: Reader, tenant: str, request: GetSignal, _now: int) -> RawJson:
    key = Key(tenant, request.signal_id)
    signal = (await store.find(reader, [key])).get(key)
    if signal is None:
        raise Rejection(Code.NOT_FOUND, f"no signal {request.signal_id!r}")
    return signal_view(signal)


async def _list(reader: Reader, tenant: str, request: ListSignals, _now: int) -> RawJson:
    """Return a page of signals, by status: those that have ended are the last."""

    async def read(status: Status, place: Sequence[str], limit: int) -> list[Signal]:
        if request.status not in {None, status}:
            return []
        return await store.page(reader, tenant, status, item=request.work_item_id, after=place[0], limit=limit)

    return await read_page(
        "signals",
        read_in_turn([(("",), partial(read, status)) for status in _STATUSES]),
        after=(0, "") if request.cursor is None else read_cursor(request.cursor, int, str),
        limit=request.limit,
        view=signal_view,
        cursor_of=lambda signal: (_STATUSES.index(signal.status), signal.key.signal_id),
    )


async def _list_firings(reader: Reader, tenant: str, request: ListFirings, _now: int) -> RawJson:
    return await read_page(
        "firings",
        partial(firing_store.page_of_signal, reader, Key(tenant, request.signal_id)),
        after=_read_cursor(request.cursor),
        limit=request.limit,
        view=_firing_view,
        cursor_of=lambda row: Cursor(row["created_at"], row["firing_id"]),
    )


async def _list_tasks(reader: Reader, tenant: str, request: ListTasks, _now: int) -> RawJson:
    return await read_page(
        "tasks",
        partial(firing_store.tasks_of_item, reader, ItemKey(tenant, request.work_item_id)),
        after=_read_cursor(request.cursor),
        limit=request.limit,
        view=_task_view,
        cursor_of=lambda row: Cursor(row["settled_at"], row["firing_id"]),
    )


QUERIES = (
    QueryRoute("get-signal", GetSignal, SignalView, _get),
    QueryRoute("list-signals", ListSignals, SignalPage, _list),
    QueryRoute("list-firings", ListFirings, FiringPage, _list_firings),
    QueryRoute("list-tasks", ListTasks, TaskPage, _list_tasks),
)


def _firing_view(row: Row) -> Mapping[str, Any]:
    """Return the view of a firing. Only a firing whose signal has fired is a task."""
    is_task = row["status"] == FiringStatus.ENQUEUED
    return omit_none(
        tenantId=row["tenant_id"],
        firingId=row["firing_id"],
        signalId=row["signal_id"],
        dedupeKey=row["dedupe_key"],
        status=row["status"],
        dueAt=format_instant(row["due_at"]),
        createdAt=format_instant(row["created_at"]),
        attempt=row["attempt"],
        workItemId=row["work_item_id"],
        taskId=firing_store.task_id(row) if is_task else None,
        settledAt=format_optional(row["settled_at"]),
        lastError=row["last_error"],
    )


def _task_view(row: Row) -> Mapping[str, Any]:
    """Return the view of a task from the row of its firing. It was created when the firing was settled."""
    return {
        "tenantId": row["tenant_id"],
        "taskId": firing_store.task_id(row),
        "workItemId": row["work_item_id"],
        "signalId": row["signal_id"],
        "firingId": row["firing_id"],
        "createdAt": format_instant(row["settled_at"]),
    }


def _read_cursor(cursor: str | None) -> Cursor:
    return _BEGINNING if cursor is None else Cursor(*read_cursor(cursor, int, str))
