"""The outbox: the table of events to publish, written together with the rows that caused them.

A relay over `OUTBOX` publishes each event at least once, always under the same id, and then deletes its row. A row that
cannot be published stays in state Buried, with the reason, until it is requeued.

Dead letters have a table and a relay of their own: an event does not wait while their stream is full or missing.
"""

import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import NamedTuple

from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.portions import load_in_portions
from timer_service.core.due.row_counts import CountedRows
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.codec import encode
from timer_service.core.values.message import Address, Event, Kind, Message

_SQL = load_sql("timer_service.core.events", "outbox.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"

OUTBOX = LeasedTable(
    name="outbox",
    key=("tenant_id", "event_id"),
    claimed=("tenant_id", "event_id", "message", "body", "traceparent", "tracestate", "added_at", "ordinal"),
    oldest_first="added_at",
    ordinal="ordinal",
    due_at_once="TRUE",
    large="body",
    state="state",
    waiting="Waiting",
    held="Waiting",
    buried="Buried",
)

DEAD_LETTERS = replace(
    OUTBOX,
    name="dead_letters",
    key=("tenant_id", "letter_id"),
    claimed=("tenant_id", "letter_id", "message", "body", "headers", "added_at", "ordinal"),
)

_NEXT_AVAILABLE = OUTBOX.sql("next_available")
_OLDEST_OF_TENANTS = OUTBOX.sql("due_tenants")
_TENANTS = 5000
_EVER = 2**62
_LOCKED_AT_ONCE = 8
"""How many events are locked at a time. An event may have 1 MiB, and the database reads it to return its size."""

COUNTED = (
    CountedRows(OUTBOX.name, OUTBOX.waiting, "available_at IS NOT NULL"),
    CountedRows(OUTBOX.name, OUTBOX.buried, "state = 'Buried'"),
    CountedRows(DEAD_LETTERS.name, DEAD_LETTERS.waiting, "available_at IS NOT NULL"),
)
"""The rows that the gauges count."""

_KEY = itemgetter(*OUTBOX.key)
_LETTER_KEY = itemgetter(*DEAD_LETTERS.key)
_ORDINALS = itertools.count()
"""One counter for the process. With one per transaction, every function that adds events would have to pass it on."""


class EventKey(NamedTuple):
    """The key of an event in the outbox."""

    tenant_id: str
    event_id: str


class LockedEvent(NamedTuple):
    """An event in the outbox."""

    state: str
    size: int
    """How many characters it has if it is buried; else 0."""


async def add(tx: Transaction, events: Collection[Event], now: int) -> None:
    """Write events, which the relay publishes after the commit. An event whose id is in the outbox is not changed.

    The relay publishes events in the order in which this instance added them, as far as docs/guarantees.md promises.
    The caller should wake the relay's loop; otherwise the relay finds the events at its next poll.
    """
    rows = [_parameters(event, now) for event in events]  # numbers the events in their order
    await tx.executemany(_SQL["add"], sorted(rows, key=_KEY))  # in the order in which every transaction locks rows


async def add_dead_letters(tx: Transaction, letters: Collection[Message], now: int) -> None:
    """Write dead letters, which their relay publishes like events."""
    rows = [
        {
            "tenant_id": letter.address.tenant,
            "letter_id": letter.id,
            "message": letter.address.message,
            "body": b64encode(letter.body).decode(),
            "headers": json.dumps(letter.headers),
            "at": now,
            "ordinal": next(_ORDINALS),
        }
        for letter in letters
    ]
    await tx.executemany(_SQL["add_dead_letter"], sorted(rows, key=_LETTER_KEY))


async def oldest_available(reader: Reader, without: Collection[str] = ()) -> int | None:
    """Return when the event became available that has waited longest; None if none waits.

    `without`: the tenants whose events do not count. Then at most 5,000 tenants are looked at, and an event that is
    tried again later counts from the instant when it was added.
    """
    if without:
        all_tenants = {"now": _EVER, "after": "", "limit": _TENANTS, "looked_at": _TENANTS}
        rows = await reader.fetch(_OLDEST_OF_TENANTS, all_tenants)
        return min((row["oldest"] for row in rows if row["oldest"] and row["tenant_id"] not in without), default=None)
    (row,) = await reader.fetch(_NEXT_AVAILABLE)
    at: int | None = row["at"]
    return at


async def find_waiting(reader: Reader, since: Mapping[str, int]) -> set[str]:
    """Return the tenants of which an event waits that was available at an instant, by the instants of the tenants."""
    each = [{"tenant_id": tenant, "at": at} for tenant, at in sorted(since.items())]
    return {row["tenant_id"] for row in await reader.fetch_each(_SQL["find_waiting"], each)}


async def lock_events(
    tx: Transaction, keys: Collection[EventKey]
) -> tuple[dict[EventKey, LockedEvent], frozenset[EventKey]]:
    """Lock the events that exist until the transaction ends. Return them, and the keys that are left.

    Keys are left if buried events have much data: `requeue` would write all of it again.
    """
    return await load_in_portions(keys, partial(_lock, tx), attrgetter("size"), _LOCKED_AT_ONCE)


async def _lock(tx: Transaction, keys: Sequence[EventKey]) -> dict[EventKey, LockedEvent]:
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in keys])
    return {EventKey(row["tenant_id"], row["event_id"]): LockedEvent(row["state"], row["size"]) for row in rows}


async def requeue(tx: Transaction, keys: Collection[EventKey], now: int) -> None:
    """Return buried events to state Waiting, with no attempts counted. The caller has locked them."""
    await tx.executemany(_SQL["requeue"], [{**key._asdict(), "now": now} for key in sorted(keys)])


async def read_buried_page(reader: Reader, tenant_id: str, after: Sequence[str | int], limit: int) -> Sequence[Row]:
    """Return up to `limit` buried events after a cursor, oldest first. A cursor is (added_at, event id)."""
    added_at, event_id = after
    parameters = {"tenant_id": tenant_id, "added_at": added_at, "event_id": event_id, "limit": limit}
    return await reader.fetch(_SQL["buried_page"], parameters)


def stored_message(row: Row, _at: int) -> Message:
    """Return the message of a claimed event. It is the same, byte for byte, each time it is published."""
    trace = {name: row[name] for name in ("traceparent", "tracestate") if row[name] is not None}
    return Message(Address(Kind.EVENT, row["tenant_id"], row["message"]), row["event_id"], row["body"].encode(), trace)


def stored_dead_letter(row: Row, _at: int) -> Message:
    """Return the message of a claimed dead letter. It is the same, byte for byte, each time it is published."""
    address = Address(Kind.DEAD_LETTER, row["tenant_id"], row["message"])
    return Message(address, row["letter_id"], b64decode(row["body"]), json.loads(row["headers"]))


def _parameters(event: Event, now: int) -> dict[str, object]:
    message = encode(event)
    return {
        "tenant_id": event.tenant,
        "event_id": event.id,
        "message": message.address.message,
        "body": message.body.decode(),
        "traceparent": event.trace.traceparent,
        "tracestate": event.trace.tracestate,
        "at": now,
        "ordinal": next(_ORDINALS),
    }
