"""What was given up or cannot go on, by tenant, and the dead letters of the last hour."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from timer_service.core.events.outbox import OUTBOX
from timer_service.core.ports.database import Row
from timer_service.events.queries import QUERIES
from timer_service.events.store import TABLE as PARKED_EVENTS
from timer_service.schedules.messages import ShownStatus
from timer_service.schedules.store import SCHEDULES
from timer_service.signals.firing_store import FIRINGS
from timer_service.signals.signal import Status
from timer_service.timers.messages import State
from timer_service.timers.store import TIMERS
from timer_service.ui import tenants
from timer_service.ui.activity import activity
from timer_service.ui.links import command, link
from timer_service.ui.pages import Content
from timer_service.ui.parameters import BadParameterError
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.lists import read_page
from timer_service.ui.views.view import Asked, View, main_view
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.workflow import BLOCKED_FROM

_BURIED, _PARKED, _ = QUERIES
_FEW = 10
"""How many tenants of each kind the page shows. A page of one kind shows more."""


class Kind(NamedTuple):
    """One kind of failure."""

    name: str
    title: str
    meaning: str
    rows: Rows
    id: str
    """The column with the id of what failed."""
    reason: str
    """The column that says why."""
    order: str
    """The columns of the index after the tenant."""
    list: Callable[[str], str]
    """Returns the URL of a tenant's list."""
    retry: Callable[[str, str], str] | None = None
    """Returns the command that tries again, for a tenant and an id."""

    @property
    def first(self) -> str:
        """The statement that reads the first failure of a tenant."""
        return self.rows.sql("first", id=self.id, reason=self.reason, order=self.order)


class _Tenant(NamedTuple):
    name: str
    amount: int
    url: str
    reason: str
    """Why the first one failed."""
    retry: str | None


class _Group(NamedTuple):
    kind: Kind
    tenants: Sequence[_Tenant]
    after: str | None
    """The last tenant, if there are more."""


KINDS = (
    Kind(
        "timers",
        "Timers that were given up",
        "Their events could not be published after all attempts. Fix the reason, then retry them.",
        Rows(TIMERS.name, "state = 'Failed'"),
        id="service_call_id",
        reason="last_error",
        order="due_at, service_call_id",
        list=lambda tenant: link("timers", tenant=tenant, state=State.FAILED.value),
        retry=lambda tenant, _: f"{command('timers', 'retry', tenant)} --failed",
    ),
    Kind(
        "events",
        "Buried events",
        "Events of signals, schedules, workflows and runs that could not be published. They keep their ids.",
        Rows(OUTBOX.name, "state = 'Buried'"),
        id="event_id",
        reason="last_error",
        order="added_at, event_id",
        list=lambda tenant: link("events", tenant=tenant),
        retry=lambda tenant, _: f"{command('events', 'retry', tenant)} --all",
    ),
    Kind(
        "parked",
        "Parked events",
        "Events that a consumer of a tenant could not handle. Fix the reason, then resubmit them to this consumer.",
        Rows(PARKED_EVENTS),
        id="consumer",
        reason="reason",
        order="parked_at, event_id",
        list=lambda tenant: link("parked", tenant=tenant),
        retry=lambda tenant, consumer: f"{command('events', 'resubmit', tenant, consumer)} --all",
    ),
    Kind(
        "firings",
        "Firings that were given up",
        "Their signals are paused. Fix the reason, then activate the signals.",
        Rows(FIRINGS.name, "status = 'failed'"),
        id="signal_id",
        reason="last_error",
        order="firing_id",
        list=lambda tenant: link("signals", tenant=tenant, status=Status.PAUSED.value),
        retry=lambda tenant, signal: command("signals", "activate", tenant, signal),
    ),
    Kind(
        "workflows",
        "Failed workflows",
        "A step failed in all its attempts, the function raised an error, or the deadline passed.",
        Rows("workflows", "status = 'failed'"),
        id="workflow_id",
        reason="failure_code",
        order="workflow_id",
        list=lambda tenant: link("workflows", tenant=tenant, status=WorkflowStatus.FAILED.value),
        retry=lambda tenant, workflow: command("workflows", "retry", tenant, workflow),
    ),
    Kind(
        "blocked",
        "Blocked workflows",
        "The function does not match what the workflow has done. Deploy workers with the right version.",
        Rows("workflows", f"blocks >= {BLOCKED_FROM} AND ended_at IS NULL"),
        id="workflow_id",
        reason="last_error",
        order="workflow_id",
        list=lambda tenant: link("workflows", tenant=tenant, status=WorkflowStatus.WAITING.value),
    ),
    Kind(
        "schedules",
        "Schedules that cannot fire",
        "Their next slot cannot be computed, for example because a time zone is missing. It is tried every minute.",
        Rows(SCHEDULES.name, "last_error IS NOT NULL"),
        id="schedule_id",
        reason="last_error",
        order="schedule_id",
        list=lambda tenant: link("schedules", tenant=tenant, status=ShownStatus.ACTIVE.value),
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
        "rejected": asked.instance.rejected(),
    }
    return Content("failed.html", values)


async def _read(asked: Asked, kind: Kind, after: str, limit: int) -> _Group:
    """Return the tenants with their failures. The number of statements does not depend on the number of tenants."""
    page = await tenants.page(asked.reads.reader, kind.rows, after, limit)
    counts = await tenants.count(asked.reads.reader, kind.rows, page.names)
    rows = await asked.reads.reader.fetch_each(kind.first, [{"tenant_id": name} for name in page.names])
    first = {row["tenant_id"]: row for row in rows}  # a tenant is left out if its last failure is over by now
    found = [_tenant(kind, name, counts[name], first[name]) for name in page.names if name in first]
    return _Group(kind, found, page.after)


def _tenant(kind: Kind, name: str, count: int, first: Row) -> _Tenant:
    """Return a tenant of a group, with the reason of its first failure and the command that tries it again."""
    retry = None if kind.retry is None else kind.retry(name, first["id"])
    return _Tenant(name, count, kind.list(name), first["reason"] or "", retry)


async def _show_events(asked: Asked) -> Content:
    tenant = asked.parameters.needed_tenant("the failures")
    page = await read_page(asked, _BURIED, tenant)
    return Content("events.html", {**page, "tenant": tenant})


async def _show_parked(asked: Asked) -> Content:
    tenant = asked.parameters.needed_tenant("the failures")
    page = await read_page(asked, _PARKED, tenant)
    return Content("parked.html", {**page, "tenant": tenant})


FAILED = main_view("failed", "Failed", _show, "kind", "after")
EVENTS = View("events", None, FAILED.path, frozenset({"tenant", "cursor"}), _show_events)
PARKED = View("parked", None, FAILED.path, frozenset({"tenant", "cursor"}), _show_parked)
