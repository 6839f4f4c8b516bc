"""Queries about timers. A tenant sees only its own timers."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from timer_service.core.database import Reader
from timer_service.core.errors import Code, Rejection
from timer_service.core.instant import LATEST, Instant, format_instant
from timer_service.core.message import Identifier, Payload, Tenant
from timer_service.core.paging import PageCursor, PageLimit, read_cursor, read_page
from timer_service.core.query import QueryRoute
from timer_service.timers import store
from timer_service.timers.rules import Key, State, Timer
from timer_service.timers.store import Cursor

_MAX_COUNT = 1_000_000
_BEGINNING = Cursor(-1, "")
_NO_BOUND = LATEST + 1


class GetTimer(Payload):
    """Ask for one timer by its service call."""

    service_call_id: Identifier


class ListTimers(Payload):
    """Ask for one page of the timers that are due in [dueAfter, dueBefore), in order of due time."""

    state: State | None = None
    due_before: Instant | None = None
    due_after: Instant | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class CountTimers(Payload):
    """Ask for the number of timers in each state."""


class TimerView(Payload):
    """A timer as replies to commands and queries show it."""

    tenant_id: Tenant
    service_call_id: Identifier
    due_at: Instant
    state: State
    registered_at: Instant
    attempt: int = Field(ge=0, description="The number of attempts to publish the event.")
    reached_at: Instant | None = None
    last_error: str | None = None
    correlation_id: Identifier | None = None
    data: Any = None


class TimerPage(Payload):
    """A page of timers in order of due time. If `cursor` is set, send it with the same filters for the next page."""

    timers: list[TimerView]
    cursor: str | None = None


class TimerCounts(Payload):
    """The number of timers in each state. If `exact` is false, the service stopped counting at a limit."""

    counts: Mapping[State, int]
    overdue: int = Field(ge=0, description="The number of Scheduled timers whose due time has passed.")
    exact: bool
    oldest_due: Instant | None = Field(default=None, description="The earliest due time of a Scheduled timer.")


def timer_view(timer: Timer) -> Mapping[str, Any]:
    """Return a timer as replies to commands and queries show it.

    The dict is written by hand because it is faster: 1.2 ms for a page of 1,000 timers, `TimerView` takes 10 ms.
    """
    assert timer.schedule is not None  # noqa: S101 - tombstones are not shown
    view: dict[str, Any] = {
        "tenantId": timer.key.tenant_id,
        "serviceCallId": timer.key.service_call_id,
        "dueAt": format_instant(timer.schedule.due_at),
        "state": timer.state,
        "registeredAt": format_instant(timer.registered_at),
        "attempt": timer.attempt,
    }
    if timer.state is State.REACHED and timer.settled_at is not None:
        view["reachedAt"] = format_instant(timer.settled_at)
    if timer.last_error is not None:
        view["lastError"] = timer.last_error
    if timer.schedule.correlation_id is not None:
        view["correlationId"] = timer.schedule.correlation_id
    if timer.schedule.data is not None:
        view["data"] = from_json(timer.schedule.data)
    return view


async def _get(reader: Reader, tenant: str, request: GetTimer, _now: int) -> Mapping[str, Any]:
    key = Key(tenant, request.service_call_id)
    timer = (await store.find(reader, [key])).get(key)
    if timer is None or timer.schedule is None:
        raise Rejection(Code.NOT_FOUND, f"no timer {request.service_call_id!r}")
    return timer_view(timer)


async def _list(reader: Reader, tenant: str, request: ListTimers, _now: int) -> Mapping[str, Any]:
    due_before = _NO_BOUND if request.due_before is None else request.due_before
    states = list(State) if request.state is None else [request.state]
    after = _start(request)

    async def read(after: Cursor, limit: int) -> list[Timer]:
        return await store.page(reader, tenant, states, due_before, after=after, limit=limit)

    return await read_page("timers", read, after=after, limit=request.limit, view=timer_view, place=_cursor_of)


async def _count(reader: Reader, tenant: str, _request: CountTimers, now: int) -> Mapping[str, Any]:
    counts = await store.count(reader, tenant, list(State), _NO_BOUND, _MAX_COUNT)
    exact = max(counts.values()) < _MAX_COUNT
    overdue = await store.count(reader, tenant, [State.SCHEDULED], now, _MAX_COUNT)
    reply = {"counts": counts, "exact": exact, "overdue": overdue[State.SCHEDULED]}
    oldest = await store.oldest_due(reader, tenant)
    return reply if oldest is None else {**reply, "oldestDue": format_instant(oldest)}


QUERIES = (
    QueryRoute("get-timer", GetTimer, TimerView, _get),
    QueryRoute("list-timers", ListTimers, TimerPage, _list),
    QueryRoute("count-timers", CountTimers, TimerCounts, _count),
)


def _cursor_of(timer: Timer) -> Cursor:
    assert timer.schedule is not None  # noqa: S101 - tombstones are not listed
    return Cursor(timer.schedule.due_at, timer.key.service_call_id)


def _start(request: ListTimers) -> Cursor:
    after = _BEGINNING if request.due_after is None else Cursor(request.due_after, "")
    return after if request.cursor is None else max(after, Cursor(*read_cursor(request.cursor, int, str)))
