"""The search for an id over all tenants and kinds of things."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from timer_service.core.ports.database import Reader
from timer_service.timers.cancellations import prefix_end
from timer_service.ui import tenants
from timer_service.ui.links import link
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.tenants import Rows
from timer_service.ui.views.view import Asked, View

TENANTS = 200
"""How many tenants of each kind are searched. Each one costs one search of the primary key."""
_IDS = 5
"""How many ids of each kind and tenant are found."""
LOOKED_AT = 40_000
"""How many rows of each kind are looked at, shared by the tenants: some only keep an id, and have no page."""
_SHOWN = 100


class _Kind(NamedTuple):
    """A kind of things. `name` is the path of their pages."""

    name: str
    rows: Rows
    """The rows that have a page: others only keep an id."""
    id: str
    """The column with the ids."""

    @property
    def search(self) -> str:
        """The statement that reads the first ids of a tenant in a range."""
        return self.rows.sql("search", id=self.id)


KINDS = (
    _Kind("timer", Rows("timer_schedules"), "service_call_id"),
    _Kind("schedule", Rows("schedules", "status <> 'deleted'"), "schedule_id"),
    _Kind("signal", Rows("work_signals"), "signal_id"),
    _Kind("run", Rows("runs", "digest IS NOT NULL"), "run_id"),
    _Kind("workflow", Rows("workflows", "type IS NOT NULL"), "workflow_id"),
)


class _Hit(NamedTuple):
    kind: str
    tenant: str
    id: str

    @property
    def url(self) -> str:
        """The URL of its page."""
        return link(self.kind, tenant=self.tenant, id=self.id)


async def _show(asked: Asked) -> Content | Redirect:
    wanted, tenant = asked.parameters.identifier("id"), asked.parameters.tenant()
    hits: Sequence[_Hit] = []
    left_out = False
    if wanted is not None:
        hits, left_out = await _search_all(asked.reads.reader, wanted, tenant)
        if not hits and wanted.strip() not in {"", wanted}:  # an id that was pasted with a space
            wanted = wanted.strip()
            hits, left_out = await _search_all(asked.reads.reader, wanted, tenant)
    exact = [hit for hit in hits if hit.id == wanted]
    if not left_out and (len(exact) == 1 or len(hits) == 1):
        return Redirect((exact or hits)[0].url)
    begins = [hit for hit in hits if hit.id != wanted]
    values = {
        "wanted": wanted,
        "tenant": tenant,
        "hits": [*exact, *begins][:_SHOWN],
        "tenants": TENANTS if left_out else None,
        "ids": _IDS,
        "looked_at": LOOKED_AT,
        "shown": _SHOWN,
    }
    return Content("search.html", values)


async def _search_all(reader: Reader, wanted: str, tenant: str | None) -> tuple[Sequence[_Hit], bool]:
    """Return the things of all kinds whose ids begin with a text, and whether some tenants were not searched."""
    found = [await _search(reader, kind, wanted, tenant) for kind in KINDS]
    return list(chain.from_iterable(hits for hits, _ in found)), any(is_cut for _, is_cut in found)


async def _search(reader: Reader, kind: _Kind, wanted: str, tenant: str | None) -> tuple[Sequence[_Hit], bool]:
    """Return the things of a kind whose ids begin with a text, and whether some tenants were not searched.

    An id that equals the text is the first one of its tenant.
    """
    page = (
        await tenants.page(reader, Rows(kind.rows.table), "", TENANTS)
        if tenant is None
        else tenants.TenantPage([tenant])
    )
    looked_at = LOOKED_AT // max(len(page.names), 1)
    bounds = {"from": wanted, "end": prefix_end(wanted), "looked_at": looked_at, "limit": _IDS}
    rows = await reader.fetch_each(kind.search, [{"tenant_id": name, **bounds} for name in page.names])
    return [_Hit(kind.name, row["tenant_id"], row["id"]) for row in rows], page.after is not None


SEARCH = View("search", None, "search", frozenset({"id", "tenant"}), _show)
