"""Parts of every list of a tenant."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from timer_service.core.requests.query import QueryRoute
from timer_service.ui import tenants
from timer_service.ui.links import link
from timer_service.ui.pages import Content, Redirect
from timer_service.ui.reads import PAGE_ROWS
from timer_service.ui.tenants import MOST_COUNTED, Rows
from timer_service.ui.views.view import Asked


class TenantChoice(NamedTuple):
    """The page of a list before a tenant is chosen."""

    things: str
    """What the list shows, in the plural. It is also the path of the page, and the field of the reply."""
    rows: Rows
    """The rows that a tenant of the list has."""
    hint: str
    """What to do if no tenant has any."""
    example: str
    """The command that does it."""
    order: str = ""
    """A sentence about the order of the list."""

    @property
    def title(self) -> str:
        """The heading of the page."""
        return self.things.capitalize()


class StatusList(NamedTuple):
    """A list of a tenant's things, which can be narrowed to one status."""

    choice: TenantChoice
    route: QueryRoute
    statuses: type[StrEnum]

    async def show(self, asked: Asked, template: str, **filters: str | None) -> Content | Redirect:
        """Return one page of the list. `filters` are further fields of the query's request, by their names there."""
        parameters = asked.parameters
        tenant = parameters.tenant()
        if tenant is None:
            return await choose_tenant(asked, self.choice)
        page = await read_page(asked, self.route, tenant, status=parameters.choice("status", self.statuses), **filters)
        values: Mapping[str, Any] = {
            **page,
            "choice": self.choice,
            "tenant": tenant,
            "statuses": list(self.statuses),
            "items": page[self.choice.things],
            "filters": filters,
            "given": {name: parameters.text(name) for name in ("tenant", "status", *filters)},
        }
        return Content(template, values)


async def read_page(asked: Asked, route: QueryRoute, tenant: str, **fields: Any) -> dict[str, Any]:
    """Return one page of a query with the cursor of the next one, or None, and whether it is the first."""
    cursor = asked.parameters.text("cursor")
    page = await asked.reads.ask(route, tenant, route.request(limit=PAGE_ROWS, cursor=cursor, **fields))
    return {**page, "cursor": page.get("cursor"), "is_first": cursor is None}


async def choose_tenant(asked: Asked, choice: TenantChoice) -> Content | Redirect:
    """Return the page that asks for a tenant, with the tenants that have such rows, or the list of the only tenant."""
    after = asked.parameters.text("after") or ""
    found = await tenants.page(asked.reads.reader, choice.rows, after)
    if not after and len(found.names) == 1:
        return Redirect(link(choice.things, **{**asked.parameters.given, "tenant": found.names[0]}))
    counts = await tenants.count(asked.reads.reader, choice.rows, found.names)
    given = {**asked.parameters.given, "after": None}
    values = {"choice": choice, "found": found, "after": after, "counts": counts, "most": MOST_COUNTED, "given": given}
    return Content("tenants.html", values)
