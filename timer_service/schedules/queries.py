"""Queries about schedules. A tenant sees only its own schedules."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.ports.database import Reader
from timer_service.core.requests.computing import Steps
from timer_service.core.requests.query import QueryRoute
from timer_service.core.service.workflow_start import WorkflowSpec, concurrency_view
from timer_service.core.values.duration import format_duration
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import format_instant, format_optional
from timer_service.core.values.paging import read_cursor, read_in_turn, read_page
from timer_service.core.values.stored_json import RawJson, omit_none, write_view
from timer_service.schedules import store
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfills import Backfill
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.recurrence import Recurrence, next_slot
from timer_service.schedules.messages import ShownStatus
from timer_service.schedules.schedule import Key, Schedule, begun_slot, last_done
from timer_service.schedules.views import (
    GetSchedule,
    ListSchedules,
    PreviewSlots,
    SchedulePage,
    ScheduleView,
    SlotPreview,
)

_COMPUTING_SECONDS = 0.02
"""How long a query may compute slots, without its rests."""
_STATUSES = list(ShownStatus)
_MOST_BACKFILLS = 10
"""How many backfills a reply shows."""


def schedule_view(schedule: Schedule, **more: Any) -> RawJson:
    """Return the view of a schedule for replies, with more fields: the fields of `ScheduleView` that are not None."""
    definition = schedule.definition
    assert definition is not None  # noqa: S101 - tombstones are not shown
    recurrence = definition.recurrence
    fields = omit_none(
        tenantId=schedule.key.tenant_id,
        scheduleId=schedule.key.schedule_id,
        status=schedule.status,
        cron=recurrence.cron,
        zone=recurrence.zone if recurrence.every_ms is None else None,
        every=None if recurrence.every_ms is None else format_duration(recurrence.every_ms),
        calendar=None if recurrence.calendar is None else recurrence.calendar._asdict(),
        startAt=format_optional(recurrence.start_at),
        endAt=format_optional(recurrence.end_at),
        maxCount=definition.max_count,
        jitter=format_duration(definition.jitter_ms),
        catchUp={
            "policy": definition.policy,
            "lateBy": format_duration(definition.late_by_ms),
            "limit": definition.limit,
        },
        createdAt=format_instant(schedule.created_at),
        nextSlotAt=None if schedule.last_error else format_optional(schedule.slot_at),
        firedCount=schedule.fired_count,
        missedSince=format_optional(schedule.missed_since),
        lastSlotAt=format_optional(schedule.last_slot_at),
        lastFiredAt=format_optional(schedule.last_fired_at),
        lastSkippedAt=format_optional(schedule.last_skipped_at),
        lastSkipReason=schedule.last_skip_reason,
        lastError=schedule.last_error,
        topic=definition.topic,
        endedAt=format_optional(schedule.ended_at),
        endReason=schedule.end_reason,
        **more,
    )
    if definition.start is None:
        return write_view(fields, {"data": definition.data})
    return write_view(fields, {"start": _start_view(definition.start, definition.data).text})


def _start_view(spec: WorkflowSpec, data: str | None) -> RawJson:
    """Return the view of the workflow that each slot starts. `data` is its input."""
    fields = omit_none(
        type=spec.workflow_type,
        queue=spec.queue,
        deadlineIn=None if spec.deadline_in is None else format_duration(spec.deadline_in),
        **concurrency_view(spec.concurrency),
    )
    return write_view(fields, {"retry": spec.retry, "input": data})


async def _get(reader: Reader, tenant: str, request: GetSchedule, now: int) -> RawJson | Steps[RawJson]:
    """Return the view of a schedule; if it shows upcoming slots, the steps that compute it."""
    key = Key(tenant, request.schedule_id)
    found = await store.find(reader, key)
    if found is None or found.definition is None:
        raise Rejection(Code.NOT_FOUND, f"no schedule {request.schedule_id!r}")
    open_ones = await backfill_store.of_schedule(reader, key, _MOST_BACKFILLS)
    more: Mapping[str, Any] = {"backfills": [_backfill_view(each) for each in open_ones]} if open_ones else {}
    if not request.upcoming:
        return schedule_view(found, **more)
    return _view_with_upcoming(found, request.upcoming, now, more)


def _backfill_view(backfill: Backfill) -> Mapping[str, Any]:
    has_begun = backfill.after_at >= backfill.from_at  # before that, the cursor is no slot
    return {
        "commandId": backfill.cause.command_id,
        "from": format_instant(backfill.from_at),
        "to": format_instant(backfill.to_at),
        **omit_none(
            limit=backfill.slot_limit,
            count=backfill.fired_count,
            skipped=backfill.skipped_count,
            lastSlotAt=format_instant(backfill.after_at) if has_begun else None,
            lastError=backfill.last_error,
            retryAt=None if backfill.last_error is None else format_instant(backfill.available_at),
        ),
    }


def _view_with_upcoming(found: Schedule, count: int, now: int, more: Mapping[str, Any]) -> Steps[RawJson]:
    upcoming = yield from _upcoming(found, count, now)
    return schedule_view(found, upcoming=upcoming, **more)


def _upcoming(schedule: Schedule, count: int, now: int) -> Steps[list[str] | None]:
    """Return the next slots of a schedule, also if it is paused; None if they cannot be computed."""
    definition = schedule.definition
    assert definition is not None  # noqa: S101 - tombstones are not shown
    if schedule.ended_at is not None:
        return []
    if definition.max_count is not None:
        count = min(count, definition.max_count - schedule.fired_count)
    try:
        after = last_done(schedule)
        if schedule.is_paused:
            begun = begun_slot(schedule, now)
            after = max(after, now) if begun is None else begun - 1
        slots, _ = yield from _compute(definition.recurrence, after, count)
    except RecurrenceError:
        return None
    return slots


async def _list(reader: Reader, tenant: str, request: ListSchedules, _now: int) -> RawJson:
    """Return a page of schedules, by status: those that have ended are the last."""

    async def read(status: ShownStatus, place: Sequence[str], limit: int) -> list[Schedule]:
        if request.status not in {None, status}:
            return []
        return await store.page(reader, tenant, status, topic=request.topic, after=place[0], limit=limit)

    return await read_page(
        "schedules",
        read_in_turn([(("",), partial(read, status)) for status in _STATUSES]),
        after=(0, "") if request.cursor is None else read_cursor(request.cursor, int, str),
        limit=request.limit,
        view=schedule_view,
        cursor_of=lambda schedule: (_STATUSES.index(ShownStatus(schedule.status)), schedule.key.schedule_id),
    )


async def _preview(_reader: Reader, _tenant: str, request: PreviewSlots, now: int) -> Steps[Mapping[str, Any]]:
    return _preview_in_steps(request, now if request.from_ is None else request.from_)


def _preview_in_steps(request: PreviewSlots, first: int) -> Steps[Mapping[str, Any]]:
    slots, complete = yield from _compute(request.recurrence, first - 1, request.count)
    return {"slots": slots, "complete": complete}


def _compute(recurrence: Recurrence, after: int, count: int) -> Steps[tuple[list[str], bool]]:
    """Return up to `count` slots later than an instant, and whether they are complete: computing stops after 20 ms."""
    slots: list[str] = []
    seconds = 0.0
    while len(slots) < count:
        if seconds > _COMPUTING_SECONDS:
            return slots, False
        began = time.monotonic()
        slot = next_slot(recurrence, after)
        seconds += time.monotonic() - began
        if slot is None:
            break
        slots.append(format_instant(slot))
        after = slot
        yield
    return slots, True


QUERIES = (
    QueryRoute("get-schedule", GetSchedule, ScheduleView, _get),
    QueryRoute("list-schedules", ListSchedules, SchedulePage, _list),
    QueryRoute("preview-slots", PreviewSlots, SlotPreview, _preview),
)
