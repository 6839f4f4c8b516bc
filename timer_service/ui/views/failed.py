"""What was given up or cannot go on, by tenant, and the dead letters of the last hour."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from timer_service.core.outbox import OUTBOX
from timer_service.events.queries import QUERIES, ListBuriedEvents
from timer_service.schedules.messages import ShownStatus
from timer_service.schedules.store import SCHEDULES
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.steps import Status
from timer_service.timers import queries as timers
from timer_service.timers.messages import ListTimers, State
from timer_service.timers.store import TIMERS
from timer_service.ui import tenants
from timer_service.ui.activity import activity
from timer_service.ui.commands import command
from timer_service.ui.links import link
from timer_service.ui.pages import Content
from timer_service.ui.parameters import BadParameterError
from timer_service.ui.reads import PAGE_ROWS
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.view import Asked, View, main_view
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.store import WORKFLOWS
from timer_service.workflows.workflow import BLOCKED_FROM

_EVENTS = QUERIES[0]
_TIMERS = {route.name: route for route in timers.QUERIES}["list-timers"]
_FEW = 10
"""How many tenants of each kind the page shows. A page of one kind shows more."""


class _First(NamedTuple):
    """The first failure of a tenant: why it failed, and the command that tries again."""

    reason: str
    command: str


class Kind(NamedTuple):
    """One kind of failure."""

    name: str
    title: str
    meaning: str
    rows: Rows
    list: Callable[[str], str]
    """Returns the URL of a tenant's list."""
    read_first: Callable[[Asked, str], Awaitable[_First | None]] | None = None


class _Tenant(NamedTuple):
    name: str
    amount: int
    url: str
    first: _First | None


class _Group(NamedTuple):
    kind: Kind
    tenants: Sequence[_Tenant]
    after: str | None
    """The last tenant, if there are more."""


async def _first_timer(asked: Asked, tenant: str) -> _First | None:
    page = await asked.reads.ask(_TIMERS, tenant, ListTimers(state=State.FAILED, limit=1))
    for timer in page["timers"]:
        return _First(timer.get("lastError", ""), command("timers", "retry", tenant, timer["serviceCallId"]))
    return None


async def _first_event(asked: Asked, tenant: str) -> _First | None:
    page = await asked.reads.ask(_EVENTS, tenant, ListBuriedEvents(limit=1))
    for event in page["events"]:
        return _First(event["lastError"], f"{command('events', 'retry', tenant)} --all")
    return None


KINDS = (
    Kind(
        "timers",
        "Timers that were given up",
        "Their events could not be published after all attempts. Fix the reason, then retry them.",
        Rows(TIMERS.name, "state = 'Failed'"),
        lambda tenant: link("timers", tenant=tenant, state=State.FAILED.value),
        _first_timer,
    ),
    Kind(
        "events",
        "Buried events",
        "Events of signals, schedules, workflows and runs that could not be published. They keep their ids.",
        Rows(OUTBOX.name, "state = 'Buried'"),
        lambda tenant: link("events", tenant=tenant),
        _first_event,
    ),
    Kind(
        "firings",
        "Firings that were given up",
        "Their signals are paused. Fix the reason, then activate the signals.",
        Rows(FIRINGS.name, "status = 'failed'"),
        lambda tenant: link("signals", tenant=tenant, status=Status.PAUSED.value),
    ),
    Kind(
        "workflows",
        "Failed workflows",
        "A step failed in all its attempts, the function raised an error, or the deadline passed.",
        Rows(WORKFLOWS.name, "status = 'failed'"),
        lambda tenant: link("workflows", tenant=tenant, status=WorkflowStatus.FAILED.value),
    ),
    Kind(
        "blocked",
        "Blocked workflows",
        "The function does not match what the workflow has done. Deploy workers with the right version.",
        Rows(WORKFLOWS.name, f"blocks >= {BLOCKED_FROM} AND ended_at IS NULL"),
        lambda tenant: link("workflows", tenant=tenant, status=WorkflowStatus.WAITING.value),
    ),
    Kind(
        "schedules",
        "Schedules that cannot fire",
        "Their next slot cannot be computed, for example because a time zone is missing. It is tried every minute.",
        Rows(SCHEDULES.name, "last_error IS NOT NULL"),
        lambda tenant: link("schedules", tenant=tenant, status=ShownStatus.ACTIVE.value),
    ),
)


async def _show(asked: Asked) -> Content:
    only, after = asked.parameters.text("kind"), asked.parameters.text("after") or ""
    kinds = [kind for kind in KINDS if only in {None, kind.name}]
    if not kinds:
        raise BadParameterError(f"“kind” must be one of: {', '.join(kind.name for kind in KINDS)}.")
    groups = [await _read(asked, kind, after, _FEW if only is None else tenants.SHOWN) for kind in kinds]
    hour = activity(asked.instance.samples.all, asked.now)
    values = {
        "only": only,
        "after": after,
        "groups": [group for group in groups if group.tenants or only],
        "most": MOST_COUNTED,
        "activity": hour,
        "totals": {} if hour.newest is None else hour.newest.dead_letters,
        "stream": asked.instance.dead_letters,
    }
    return Content("failed.html", values)


async def _read(asked: Asked, kind: Kind, after: str, limit: int) -> _Group:
    page = await tenants.page(asked.reads.reader, kind.rows, after, limit)
    return _Group(kind, [await _tenant(asked, kind, name) for name in page.names], page.after)


async def _tenant(asked: Asked, kind: Kind, name: str) -> _Tenant:
    count = await tenants.count(asked.reads.reader, kind.rows, name)
    first = None if kind.read_first is None else await kind.read_first(asked, name)
    return _Tenant(name, count, kind.list(name), first)


async def _show_events(asked: Asked) -> Content:
    tenant = asked.parameters.tenant()
    if tenant is None:
        raise BadParameterError("This page needs “tenant”. Open it from the failures.")
    cursor = asked.parameters.text("cursor")
    page = await asked.reads.ask(_EVENTS, tenant, ListBuriedEvents(limit=PAGE_ROWS, cursor=cursor))
    values = {"tenant": tenant, "events": page["events"], "cursor": page.get("cursor"), "is_first": cursor is None}
    return Content("events.html", values)


FAILED = main_view("failed", "Failed", _show, "kind", "after")
EVENTS = View("events", None, FAILED.path, frozenset({"tenant", "cursor"}), _show_events)
