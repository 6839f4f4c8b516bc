"""Questions about timers. A tenant only ever sees its own."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from timer_service.core.database import Reader
from timer_service.core.errors import Code, Fault, Rejection
from timer_service.core.instant import LATEST, Instant, format_instant
from timer_service.core.message import Identifier, Payload
from timer_service.core.query import QueryRoute
from timer_service.timers import store
from timer_service.timers.rules import Key, State, Timer
from timer_service.timers.store import Filter, Place

_COUNTED_AT_MOST = 1_000_000
_BEGINNING = Place(-1, "")


class GetTimer(Payload):
    """Ask for one timer."""

    service_call_id: Identifier


class ListTimers(Payload):
    """Ask for timers in order of due time, those due in [dueAfter, dueBefore), a page at a time."""

    state: State | None = None
    due_before: Instant | None = None
    due_after: Instant | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=1000)


class CountTimers(Payload):
    """Ask how many timers there are in each state."""


def timer_view(timer: Timer) -> Mapping[str, Any]:
    """Return a timer as replies and queries show it."""
    assert timer.schedule is not None  # noqa: S101 - a tombstone is never shown
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


async def _get(reader: Reader, tenant: str, question: GetTimer, _now: int) -> Mapping[str, Any]:
    key = Key(tenant, question.service_call_id)
    timer = (await store.find(reader, [key])).get(key)
    if timer is None or timer.schedule is None:
        raise Rejection(Code.NOT_FOUND, f"no timer {question.service_call_id!r}")
    return timer_view(timer)


async def _list(reader: Reader, tenant: str, question: ListTimers, _now: int) -> Mapping[str, Any]:
    states = list(State) if question.state is None else [question.state]
    due_before = LATEST + 1 if question.due_before is None else question.due_before
    after = _place(question)
    found = [
        timer
        for state in states
        for timer in await store.page(reader, Filter(tenant, state, due_before), after, question.limit + 1)
    ]
    found.sort(key=_place_of)
    page = found[: question.limit]
    answer: dict[str, Any] = {"timers": [timer_view(timer) for timer in page]}
    if len(found) > len(page):
        answer["cursor"] = _cursor(_place_of(page[-1]))
    return answer


async def _count(reader: Reader, tenant: str, _question: CountTimers, now: int) -> Mapping[str, Any]:
    filters = [Filter(tenant, state, LATEST + 1) for state in State]
    overdue = Filter(tenant, State.SCHEDULED, now)
    *counts, late = await store.count(reader, [*filters, overdue], _COUNTED_AT_MOST)
    answer: dict[str, Any] = {"counts": dict(zip(State, counts, strict=True)), "overdue": late}
    answer["exact"] = max(counts) < _COUNTED_AT_MOST
    oldest = await store.oldest_due(reader, tenant)
    if oldest is not None:
        answer["oldestDue"] = format_instant(oldest)
    return answer


QUERIES = (
    QueryRoute("get-timer", GetTimer, _get),
    QueryRoute("list-timers", ListTimers, _list),
    QueryRoute("count-timers", CountTimers, _count),
)


def _place_of(timer: Timer) -> Place:
    assert timer.schedule is not None  # noqa: S101 - a tombstone is never listed
    return Place(timer.schedule.due_at, timer.key.service_call_id)


def _place(question: ListTimers) -> Place:
    after = _BEGINNING if question.due_after is None else Place(question.due_after, "")
    return after if question.cursor is None else max(after, _read_cursor(question.cursor))


def _cursor(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_cursor(cursor: str) -> Place:
    try:
        due_at, call = json.loads(base64.urlsafe_b64decode(cursor))
        if isinstance(due_at, int) and isinstance(call, str):
            return Place(due_at, call)
    except (ValueError, TypeError):
        pass
    raise Rejection(Code.INVALID_PAYLOAD, "the cursor is not one of ours", [Fault("cursor", "give it back unchanged")])
