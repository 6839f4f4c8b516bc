"""Reads and writes of parked events: events that a consumer of a user gave up."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from timer_service.core.due.row_counts import CountedRows
from timer_service.core.limits.quotas import Usage
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.events", "store.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"
PAGES = {
    "all": {
        "where": "tenant_id = :tenant_id AND (parked_at, event_id, consumer) > (:parked_at, :event_id, :after)",
        "then": ", consumer",
    },
    "consumer": {
        "where": "tenant_id = :tenant_id AND consumer = :consumer AND size > 0 "
        "AND (parked_at, event_id) > (:parked_at, :event_id)",
        "then": "",
    },
}
"""The parts of `page` for all consumers and for one. Each has an index of its own."""
_PAGES = {name: _SQL["page"].format(**parts) for name, parts in PAGES.items()}

TABLE = "parked_events"
COUNTED = CountedRows(TABLE, "Parked", "TRUE")
"""The parked events that the gauges count."""
PARKED = Usage("parked_events", _SQL["count"])
"""What limits count."""


class ParkedKey(NamedTuple):
    """The key of a parked event. Each consumer parks an event for itself."""

    tenant_id: str
    consumer: str
    event_id: str


class ParkedEvent(NamedTuple):
    """An event that a consumer gave up."""

    key: ParkedKey
    event_type: str
    about: str
    """The short texts at the start of the payload, as JSON."""
    reason: str
    attempts: int
    parked_at: int
    body: str
    """The whole event, as JSON."""


async def lock_sizes(tx: Transaction, keys: Collection[ParkedKey]) -> dict[ParkedKey, int]:
    """Lock the parked events that exist until the transaction ends. Return how many characters their bodies have."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {_key(row): row["size"] for row in rows}


async def load(reader: Reader, keys: Collection[ParkedKey]) -> dict[ParkedKey, ParkedEvent]:
    """Return the parked events that exist, with their bodies."""
    rows = await reader.fetch_each(_SQL["load"], [key._asdict() for key in keys])
    return {(event := _parked(row)).key: event for row in rows}


async def delete(tx: Transaction, keys: Iterable[ParkedKey]) -> None:
    """Delete parked events. The caller has locked them."""
    await tx.executemany(_SQL["delete"], [key._asdict() for key in sorted(keys)])


async def add(tx: Transaction, events: Iterable[ParkedEvent]) -> None:
    """Insert parked events."""
    await tx.executemany(_SQL["add"], [_parameters(event) for event in sorted(events, key=lambda event: event.key)])


async def page(
    reader: Reader, tenant_id: str, consumer: str | None, after: Sequence[str | int], limit: int
) -> Sequence[Row]:
    """Return up to `limit` parked events after a cursor, of one consumer or of all, oldest first, without bodies.

    A cursor is (parked_at, event id, consumer).
    """
    cursor = dict(zip(("parked_at", "event_id", "after"), after, strict=True))
    parameters = {"tenant_id": tenant_id, "consumer": consumer, **cursor, "limit": limit}
    return await reader.fetch(_PAGES["all" if consumer is None else "consumer"], parameters)


async def delete_old(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` events that were parked before an instant; return how many."""
    return await tx.execute(_SQL["delete_old"], {"before": before, "limit": limit})


def _key(row: Row) -> ParkedKey:
    return ParkedKey(row["tenant_id"], row["consumer"], row["event_id"])


def _parked(row: Row) -> ParkedEvent:
    return ParkedEvent(_key(row), *(row[name] for name in ParkedEvent._fields[1:]))


def _parameters(event: ParkedEvent) -> Mapping[str, object]:
    key, fields = event.key, event._asdict()
    del fields["key"]
    return {**key._asdict(), **fields, "size": len(event.body)}
