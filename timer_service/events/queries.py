"""Queries about buried events. A tenant sees only its own events."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field
from pydantic_core import from_json

from timer_service.core.events import outbox
from timer_service.core.ports.database import Reader, Row
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.instant import Instant, format_instant
from timer_service.core.values.message import Identifier, Payload, Tenant
from timer_service.core.values.paging import PageCursor, PageLimit, read_cursor, read_page
from timer_service.core.values.stored_json import RawJson

_BEGINNING = (-1, "")
_MAX_TEXT = 200


class ListBuriedEvents(Payload):
    """Ask for one page of the events that could not be published, oldest first."""

    limit: PageLimit = 100
    cursor: PageCursor | None = None


class BuriedEvent(Payload):
    """An event that the service gave up after all attempts to publish it."""

    tenant_id: Tenant
    event_id: Identifier
    event_type: str
    about: Mapping[str, str] = Field(
        description="The string fields at the start of the payload that have at most 200 characters, without tenantId."
    )
    added_at: Instant
    attempt: int = Field(ge=0)
    last_error: str


class BuriedEventPage(Payload):
    """A page of buried events, oldest first. If `cursor` is set, send it for the next page."""

    events: list[BuriedEvent]
    cursor: str | None = None


async def _list(reader: Reader, tenant: str, request: ListBuriedEvents, _now: int) -> RawJson:
    after = _BEGINNING if request.cursor is None else read_cursor(request.cursor, int, str)
    read = partial(outbox.read_buried_page, reader, tenant)
    return await read_page("events", read, after=after, limit=request.limit, view=_view, cursor_of=_cursor_of)


QUERIES = (QueryRoute("list-buried-events", ListBuriedEvents, BuriedEventPage, _list),)


def _cursor_of(row: Row) -> tuple[int, str]:
    return (row["added_at"], row["event_id"])


def _view(row: Row) -> Mapping[str, Any]:
    return {
        "tenantId": row["tenant_id"],
        "eventId": row["event_id"],
        **_contents(row["head"]),
        "addedAt": format_instant(row["added_at"]),
        "attempt": row["attempt"],
        "lastError": row["last_error"],
    }


def _contents(head: str) -> Mapping[str, Any]:
    """Return what is shown of the beginning of a stored event; nothing if it cannot be read."""
    try:
        event = from_json(head, allow_partial=True)
        event_type, payload = event["type"], event["payload"].items()
    except (ValueError, LookupError, TypeError, AttributeError):
        return {"eventType": "", "about": {}}
    texts = {name: value for name, value in payload if isinstance(value, str)}
    about = {name: text for name, text in texts.items() if name != "tenantId" and len(text) <= _MAX_TEXT}
    return {"eventType": event_type, "about": about}
