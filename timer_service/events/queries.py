"""Queries about buried events and parked events. A tenant sees only its own events."""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

from pydantic import Field

from timer_service.core.events import outbox
from timer_service.core.ports.database import Reader, Row
from timer_service.core.requests.query import QueryRoute
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.instant import Instant, format_instant
from timer_service.core.values.message import Identifier, Payload, Tenant
from timer_service.core.values.paging import PageCursor, PageLimit, read_cursor, read_page
from timer_service.core.values.stored_json import RawJson, write_view
from timer_service.events import store
from timer_service.events.contents import read_contents
from timer_service.events.messages import Consumer, EventBody
from timer_service.events.store import ParkedKey

_FIRST_BURIED = (-1, "")
_FIRST_PARKED = (-1, "", "")
_About = Annotated[
    Mapping[str, str],
    Field(
        description="The string fields at the start of the payload that have at most 200 characters, without tenantId."
    ),
]


class ListBuriedEvents(Payload):
    """Ask for one page of the events that could not be published, oldest first."""

    limit: PageLimit = 100
    cursor: PageCursor | None = None


class BuriedEvent(Payload):
    """An event that the service gave up after all attempts to publish it."""

    tenant_id: Tenant
    event_id: Identifier
    event_type: str
    about: _About
    added_at: Instant
    attempt: int = Field(ge=0)
    last_error: str


class BuriedEventPage(Payload):
    """A page of buried events, oldest first. If `cursor` is set, send it for the next page."""

    events: list[BuriedEvent]
    cursor: str | None = None


class ListParkedEvents(Payload):
    """Ask for one page of the events that consumers gave up, or one consumer, oldest first."""

    consumer: Consumer | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class GetParkedEvent(Payload):
    """Ask for an event that a consumer gave up, with the whole event."""

    consumer: Consumer
    event_id: Identifier


class ParkedEventRow(Payload):
    """An event that a consumer gave up after some attempts."""

    tenant_id: Tenant
    consumer: Consumer
    event_id: Identifier
    event_type: str
    about: _About
    parked_at: Instant
    reason: str
    attempts: int = Field(ge=1)


class ParkedEventPage(Payload):
    """A page of parked events, oldest first. If `cursor` is set, send it for the next page."""

    events: list[ParkedEventRow]
    cursor: str | None = None


class ParkedEventView(ParkedEventRow):
    """An event that a consumer gave up, with the whole event."""

    event: EventBody


async def _list_buried(reader: Reader, tenant: str, request: ListBuriedEvents, _now: int) -> RawJson:
    after = _FIRST_BURIED if request.cursor is None else read_cursor(request.cursor, int, str)
    read, cursor_of = partial(outbox.read_buried_page, reader, tenant), itemgetter("added_at", "event_id")
    return await read_page("events", read, after=after, limit=request.limit, view=_buried_view, cursor_of=cursor_of)


async def _list_parked(reader: Reader, tenant: str, request: ListParkedEvents, _now: int) -> RawJson:
    after = _FIRST_PARKED if request.cursor is None else read_cursor(request.cursor, int, str, str)
    read = partial(store.page, reader, tenant, request.consumer)
    cursor_of = itemgetter("parked_at", "event_id", "consumer")
    return await read_page("events", read, after=after, limit=request.limit, view=_parked_view, cursor_of=cursor_of)


async def _get_parked(reader: Reader, tenant: str, request: GetParkedEvent, _now: int) -> RawJson:
    """Return a parked event with its body. Raises `Rejection` if it is not parked."""
    key = ParkedKey(tenant, request.consumer, request.event_id)
    if (found := (await store.load(reader, [key])).get(key)) is None:
        raise Rejection(Code.NOT_FOUND, f"no event {request.event_id!r} that {request.consumer!r} has parked")
    fields = {**key._asdict(), **found._asdict()}
    return write_view(_parked_fields(fields), {"about": found.about, "event": found.body})


QUERIES = (
    QueryRoute("list-buried-events", ListBuriedEvents, BuriedEventPage, _list_buried),
    QueryRoute("list-parked-events", ListParkedEvents, ParkedEventPage, _list_parked),
    QueryRoute("get-parked-event", GetParkedEvent, ParkedEventView, _get_parked),
)


def _buried_view(row: Row) -> Mapping[str, Any]:
    contents = read_contents(row["head"])
    return {
        "tenantId": row["tenant_id"],
        "eventId": row["event_id"],
        "eventType": contents.event_type,
        "about": contents.about,
        "addedAt": format_instant(row["added_at"]),
        "attempt": row["attempt"],
        "lastError": row["last_error"],
    }


def _parked_view(row: Row) -> RawJson:
    return write_view(_parked_fields(row), {"about": row["about"]})


def _parked_fields(row: Row | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a parked event, without those that are stored as JSON."""
    return {
        "tenantId": row["tenant_id"],
        "consumer": row["consumer"],
        "eventId": row["event_id"],
        "eventType": row["event_type"],
        "parkedAt": format_instant(row["parked_at"]),
        "reason": row["reason"],
        "attempts": row["attempts"],
    }
