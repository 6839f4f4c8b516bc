"""Queries about timers. A tenant sees only its own timers."""

from collections.abc import Mapping, Sequence
from typing import Any

from timer_service.core.ports.database import Reader
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import LATEST, format_instant, format_optional
from timer_service.core.values.paging import read_cursor, read_in_turn, read_page
from timer_service.core.values.stored_json import RawJson, omit_none, write_view
from timer_service.timers import store
from timer_service.timers.messages import CountTimers, GetTimer, ListTimers, State, TimerCounts, TimerPage, TimerView
from timer_service.timers.rules import Key, Timer
from timer_service.timers.store import Place

MOST_COUNTED = 1_000_000
_NO_BOUND = LATEST + 1


def timer_view(timer: Timer) -> RawJson:
    """Return the view of a timer for replies."""
    schedule = timer.schedule
    fields = omit_none(
        tenantId=timer.key.tenant_id,
        serviceCallId=timer.key.service_call_id,
        dueAt=format_instant(schedule.due_at),
        state=timer.state,
        registeredAt=format_instant(timer.registered_at),
        attempt=timer.attempt,
        expiresAt=format_optional(schedule.expires_at),
        reachedAt=format_optional(timer.reached_at),
        expiredAt=format_optional(timer.expired_at),
        lastError=timer.last_error,
        topic=schedule.topic,
        correlationId=schedule.correlation_id,
    )
    return write_view(fields, {"data": schedule.data})


async def _get(reader: Reader, tenant: str, request: GetTimer, _now: int) -> RawJson:
    """Return the view of one timer. Raises `Rejection` if it does not exist."""
    key = Key(tenant, request.service_call_id)
    timer = (await store.find(reader, [key])).get(key)
    if timer is None:
        raise Rejection(Code.NOT_FOUND, f"no timer {request.service_call_id!r}")
    return timer_view(timer)


async def _list(reader: Reader, tenant: str, request: ListTimers, _now: int) -> RawJson:
    """Return a page of timers: those that are Scheduled, the earliest first, and then the others, the latest first."""
    states = set(State) if request.state is None else {request.state}
    first = 0 if request.due_after is None else request.due_after
    end = _NO_BOUND if request.due_before is None else request.due_before

    async def read_scheduled(place: Sequence[Any], limit: int) -> Sequence[Timer]:
        wanted, after = states & {State.SCHEDULED}, max(Place(*place), Place(first, ""))
        return await store.page(reader, tenant, wanted, topic=request.topic, place=after, end=end, limit=limit)

    async def read_others(place: Sequence[Any], limit: int) -> Sequence[Timer]:
        wanted, before = states - {State.SCHEDULED}, min(Place(*place), Place(end, ""))
        return await store.page(reader, tenant, wanted, topic=request.topic, place=before, end=first, limit=limit)

    return await read_page(
        "timers",
        read_in_turn([(Place(first, ""), read_scheduled), (Place(end, ""), read_others)]),
        after=(0, first, "") if request.cursor is None else read_cursor(request.cursor, int, int, str),
        limit=request.limit,
        view=timer_view,
        cursor_of=cursor_of,
    )


def cursor_of(timer: Timer) -> tuple[int, int, str]:
    """Return the cursor of the list after a timer."""
    return int(timer.state is not State.SCHEDULED), timer.schedule.due_at, timer.key.service_call_id


async def _count(reader: Reader, tenant: str, _request: CountTimers, now: int) -> Mapping[str, Any]:
    """Return the counts. `exact` is false if the count of a state has stopped at its limit."""
    counts = await store.count(reader, tenant, list(State), _NO_BOUND, MOST_COUNTED)
    overdue = await store.count(reader, tenant, [State.SCHEDULED], now, MOST_COUNTED)
    return omit_none(
        counts=counts,
        overdue=overdue[State.SCHEDULED],
        exact=max(counts.values()) < MOST_COUNTED,
        oldestDue=format_optional(await store.oldest_due(reader, tenant)),
    )


QUERIES = (
    QueryRoute("get-timer", GetTimer, TimerView, _get),
    QueryRoute("list-timers", ListTimers, TimerPage, _list),
    QueryRoute("count-timers", CountTimers, TimerCounts, _count),
)
