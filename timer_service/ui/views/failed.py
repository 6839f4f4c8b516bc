"""What was given up or cannot go on, by tenant, and the dead letters of the last hour."""

from collections.abc import Sequence
from typing import NamedTuple

from timer_service.events.queries import QUERIES
from timer_service.ui import tenants
from timer_service.ui.activity import activity
from timer_service.ui.failures import KINDS, Failure, Kind, read_last
from timer_service.ui.pages import Content
from timer_service.ui.parameters import BadParameterError
from timer_service.ui.tenants import MOST_COUNTED
from timer_service.ui.views.lists import read_page
from timer_service.ui.views.view import Asked, View, main_view

_BURIED, _PARKED, _ = QUERIES
_FEW = 10
"""How many tenants of each kind the page shows. A page of one kind shows more."""


class _Tenant(NamedTuple):
    name: str
    amount: int
    url: str
    one: Failure
    retry: str | None


class _Group(NamedTuple):
    kind: Kind
    tenants: Sequence[_Tenant]
    after: str | None
    """The last tenant, if there are more."""


async def _show(asked: Asked) -> Content:
    only, after = asked.parameters.text("kind"), asked.parameters.text("after") or ""
    kinds = [kind for kind in KINDS if only in {None, kind.name}]
    if not kinds:
        raise BadParameterError(f"“kind” must be one of: {', '.join(kind.name for kind in KINDS)}.")
    groups = [await _read(asked, kind, after, _FEW if only is None else tenants.SHOWN) for kind in kinds]
    hour = activity(asked.instance.samples.until(asked.now), asked.now)
    values = {
        "only": only,
        "after": after,
        "groups": [group for group in groups if group.tenants or only],
        "most": MOST_COUNTED,
        "activity": hour,
        "totals": hour.newest.dead_letters,
        "stream": asked.instance.dead_letters,
        "rejected": asked.instance.rejected(),
    }
    return Content("failed.html", values)


async def _read(asked: Asked, kind: Kind, after: str, limit: int) -> _Group:
    """Return the tenants with their failures. The number of statements does not depend on the number of tenants."""
    page = await tenants.page(asked.reads.reader, kind.rows, after, limit)
    counts = await tenants.count(asked.reads.reader, kind.rows, page.names)
    found = await read_last(asked.reads.reader, kind, page.names, limit=1)
    last = {each.tenant: each for each in found}  # a tenant is left out if its last failure is over by now
    return _Group(kind, [_tenant(kind, last[name], counts[name]) for name in page.names if name in last], page.after)


def _tenant(kind: Kind, one: Failure, count: int) -> _Tenant:
    """Return a tenant of a group, with one of its failures and the command that tries again."""
    retry = None if kind.retry is None else kind.retry(one.tenant, one.id)
    return _Tenant(one.tenant, count, kind.list(one.tenant), one, retry)


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
