"""The timers of a tenant, and one timer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from timer_service.core.ports.database import Reader, Row
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import LATEST, format_instant, format_optional, parse_instant
from timer_service.core.values.paging import read_cursor, write_cursor
from timer_service.core.values.stored_json import omit_none
from timer_service.timers import store
from timer_service.timers.cancellations import prefix_end
from timer_service.timers.messages import ListTimers, State
from timer_service.timers.queries import QUERIES
from timer_service.timers.rules import Key, Timer
from timer_service.ui.links import command
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.parameters import Parameters
from timer_service.ui.reads import PAGE_ROWS
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.lists import TenantChoice, choose_tenant
from timer_service.ui.views.view import Asked, item_view, main_view

_ROUTES = {route.name: route for route in QUERIES}
CHOICE = TenantChoice(
    things="timers",
    rows=Rows(store.TIMERS.name),
    hint="Schedule the first one:",
    example=f"{command('timers', 'schedule', 'acme', 'call-1')} --in 10s",
)
_SQL = load_sql("timer_service.ui", "rows.sql")
_SEARCHED = 500
"""How many timers a search reads at most. No index has correlation ids, or ids together with other filters."""


class _Found(NamedTuple):
    """The timers of a page."""

    timers: Sequence[Mapping[str, Any]]
    cursor: str | None = None
    looked_at: int | None = None
    """How many timers a search has read that has no index for all its filters."""


async def _show_list(asked: Asked) -> Content | Redirect:
    parameters = asked.parameters
    tenant = parameters.tenant()
    if tenant is None:
        return await choose_tenant(asked, CHOICE)
    filters = _filters(parameters)
    found = await _find(asked, tenant, filters)
    retries = {"failed": True} if filters.prefix is None else {"failed": True, "prefix": filters.prefix}
    values = {
        "tenant": tenant,
        "retry_all": command("timers", "retry", tenant, **retries),
        "given": {name: parameters.text(name) for name in _NAMES},
        "due_after": filters.request.due_after,
        "due_before": filters.request.due_before,
        "is_first": filters.request.cursor is None,
        "states": list(State),
        "counts": await store.count(asked.reads.reader, tenant, list(State), LATEST + 1, MOST_COUNTED),
        "most": MOST_COUNTED,
        "found": found,
    }
    return Content("timers.html", values)


_NAMES = ("tenant", "prefix", "state", "due_after", "due_before", "correlation")


class _Filters(NamedTuple):
    """What a search wants: the beginning of ids, a correlation id, and the rest as the request for a list."""

    prefix: str | None
    correlation: str | None
    request: ListTimers

    @property
    def are_many(self) -> bool:
        """Whether there are other filters than the beginning of ids."""
        wanted = self.request
        return (self.correlation, wanted.state, wanted.due_after, wanted.due_before) != (None, None, None, None)


def _filters(parameters: Parameters) -> _Filters:
    request = ListTimers(
        state=parameters.choice("state", State),
        due_after=format_optional(parameters.instant("due_after")),
        due_before=format_optional(parameters.instant("due_before")),
        limit=PAGE_ROWS,
        cursor=parameters.text("cursor"),
    )
    return _Filters(parameters.identifier("prefix"), parameters.identifier("correlation"), request)


async def _find(asked: Asked, tenant: str, filters: _Filters) -> _Found:
    """Return a page of the timers that fit the filters."""
    if filters.prefix is not None:
        return await _search_ids(asked.reads.reader, tenant, filters.prefix, filters)
    if filters.correlation is not None:
        return await _search(asked, tenant, filters)
    page = await asked.reads.ask(_ROUTES["list-timers"], tenant, filters.request)
    return _Found(page["timers"], page.get("cursor"))


async def _search_ids(reader: Reader, tenant: str, prefix: str, filters: _Filters) -> _Found:
    """Return the timers whose ids begin with a prefix, in the order of their ids. The cursor is the next id."""
    cursor = filters.request.cursor
    start = prefix if cursor is None else max(prefix, *read_cursor(cursor, str))
    bounds = {"from": start, "end": prefix_end(prefix), "limit": _SEARCHED + 1}
    rows = await reader.fetch(_SQL["timers_by_id"], {"tenant_id": tenant, **bounds})
    fit = [timer for timer in map(_listed, rows[:_SEARCHED]) if _fits(timer, filters)]
    following = [
        *(timer["serviceCallId"] for timer in fit[PAGE_ROWS:]),
        *(row["service_call_id"] for row in rows[_SEARCHED:]),
    ]
    looked_at = len(rows[:_SEARCHED]) if filters.are_many else None
    return _Found(fit[:PAGE_ROWS], write_cursor(following[:1]) if following else None, looked_at)


def _listed(row: Row) -> Mapping[str, Any]:
    """Return a timer as a list shows it, with the names of a reply."""
    return omit_none(
        serviceCallId=row["service_call_id"],
        state=row["state"],
        dueAt=format_instant(row["due_at"]),
        attempt=row["attempt"],
        lastError=row["last_error"],
        correlationId=row["correlation_id"],
    )


async def _search(asked: Asked, tenant: str, filters: _Filters) -> _Found:
    """Return the timers with a correlation id among the next ones.

    If more are found than a page has, the next search begins behind the last one of this page.
    """
    request = filters.request.model_copy(update={"limit": _SEARCHED})
    page = await asked.reads.ask(_ROUTES["list-timers"], tenant, request)
    found = [timer for timer in page["timers"] if _fits(timer, filters)]
    shown = found[:PAGE_ROWS]
    cursor = page.get("cursor") if shown == found else write_cursor(_cursor_after(shown[-1]))
    return _Found(shown, cursor, len(page["timers"]))


def _cursor_after(timer: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return the cursor of the list after a timer, as `cursor_of` for a view."""
    return int(timer["state"] != State.SCHEDULED), parse_instant(timer["dueAt"]), timer["serviceCallId"]


def _fits(timer: Mapping[str, Any], filters: _Filters) -> bool:
    """Return whether a timer has the state, the correlation id and a due time of a search."""
    wanted, due_at = filters.request, parse_instant(timer["dueAt"])
    return (
        wanted.state in {None, timer["state"]}
        and filters.correlation in {None, timer.get("correlationId")}
        and (wanted.due_after is None or due_at >= wanted.due_after)
        and (wanted.due_before is None or due_at < wanted.due_before)
    )


async def _show(asked: Asked) -> Content:
    key = Key(*asked.parameters.key())
    timer = (await store.find(asked.reads.reader, [key])).get(key)
    if timer is None:
        raise Rejection(Code.NOT_FOUND, f"There is no timer “{key.service_call_id}” of tenant {key.tenant_id}.")
    schedule = timer.schedule
    values = {
        "timer": timer,
        "schedule": schedule,
        "data": None if schedule.data is None else json.loads(schedule.data),
        "history": _history(timer, asked.now),
        "commands": _commands(timer),
    }
    return Content("timer.html", values)


class _Step(NamedTuple):
    """A part of the history of a timer."""

    what: str
    at: int | None
    more: str = ""
    mood: str = "done"


def _history(timer: Timer, now: int) -> list[_Step]:
    """Return what the row tells about the history of a timer."""
    schedule = timer.schedule
    steps = [_Step("Scheduled", timer.registered_at)]
    is_ahead = schedule.due_at > now and timer.settled_at is None  # a timer cancelled before will not become due
    steps.append(_Step("Due", schedule.due_at, mood="next" if is_ahead else "done"))
    if timer.attempt and timer.last_error is not None:
        attempts = "1 attempt" if timer.attempt == 1 else f"{timer.attempt} attempts"
        steps.append(_Step(f"{attempts} so far; the last one failed", None, timer.last_error, "bad"))
    match timer.state:
        case State.SCHEDULED if timer.available_at is not None and timer.available_at > schedule.due_at:
            steps.append(_Step("Next attempt, or end of the current one", timer.available_at, mood="next"))
        case State.REACHED:
            steps.append(_Step("Fired", timer.settled_at, f"event {schedule.event_id}"))
        case State.EXPIRED:
            steps.append(_Step("Expired", timer.settled_at, f"event {schedule.event_id}"))
        case State.CANCELLED:
            steps.append(_Step("Cancelled", timer.settled_at))
        case State.FAILED:
            steps.append(_Step("Given up: it fires only if it is retried", None, mood="bad"))
    return steps


def _commands(timer: Timer) -> dict[str, str]:
    """Return the commands that make sense for a timer, by what they do."""
    tenant, call = timer.key
    match timer.state:
        case State.SCHEDULED:
            return {"Cancel it": command("timers", "cancel", tenant, call)}
        case State.FAILED:
            return {"Fire it now": command("timers", "retry", tenant, call)}
        case _:
            return {}


TIMERS = main_view("timers", "Timers", _show_list, *_NAMES, "cursor", "after")
TIMER = item_view("timer", TIMERS, _show)
