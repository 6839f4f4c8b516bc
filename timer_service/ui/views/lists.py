"""Parts of every list of a tenant."""

from collections.abc import Awaitable
from typing import Any, NamedTuple

from timer_service.core.errors import Code, Rejection
from timer_service.ui import tenants
from timer_service.ui.pages import Content
from timer_service.ui.tenants import Rows
from timer_service.ui.views.view import Asked


class TenantChoice(NamedTuple):
    """The page of a list before a tenant is chosen."""

    page: str
    title: str
    things: str
    """What the list shows, in the plural."""
    rows: Rows
    """The rows that a tenant of the list has."""
    hint: str
    """What to do if no tenant has any."""
    example: str
    """The command that does it."""


async def choose_tenant(asked: Asked, choice: TenantChoice) -> Content:
    """Return the page that asks for a tenant, with the tenants that have such rows."""
    after = asked.parameters.text("after") or ""
    found = await tenants.page(asked.reads.reader, choice.rows, after)
    return Content("tenants.html", {**choice._asdict(), "found": found, "after": after})


async def read_missing_as_none(reading: Awaitable[Any]) -> Any:
    """Return what a query found, or None if there is no such thing."""
    try:
        return await reading
    except Rejection as rejection:
        if rejection.code is Code.NOT_FOUND:
            return None
        raise
