"""The outbox: events to publish, written in the same transaction as the state they announce.

A relay over `OUTBOX` publishes them, at least once and under their own ids. What is published is deleted; what can't be
stays, buried, with the reason, until it is put back.
"""

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from timer_service.core.codec import encode
from timer_service.core.database import Reader, Row, Transaction
from timer_service.core.lease import LeasedTable
from timer_service.core.message import Address, Event, Kind, Message
from timer_service.core.row_counts import Counted
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.core", "outbox.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"

OUTBOX = LeasedTable(
    name="outbox",
    key=("tenant_id", "event_id"),
    claimed=("tenant_id", "event_id", "message", "body", "traceparent", "tracestate", "added_at", "ordinal"),
    oldest_first="added_at",
    ordinal="ordinal",
    state="state",
    waiting="Waiting",
    held="Waiting",
    buried="Buried",
)

COUNTED = (
    Counted(OUTBOX.name, OUTBOX.waiting, "available_at IS NOT NULL"),
    Counted(OUTBOX.name, OUTBOX.buried, "state = 'Buried'"),
)
"""What the gauges tell of it."""

_ORDINALS = itertools.count()
"""Not one for each transaction: then what adds to one in several places would have to hand it on."""


class EventKey(NamedTuple):
    """Which event."""

    tenant_id: str
    event_id: str


async def add(tx: Transaction, events: Collection[Event], now: int) -> None:
    """Have events published once the transaction commits; one that is there already (by its id) stays as it is.

    They go out in this order, and after those that this instance has added before in the same transaction, as far as
    docs/guarantees.md promises it. The caller wakes the relay's loop, or the relay finds them at its next poll.
    """
    await tx.executemany(_SQL["add"], [_parameters(event, now) for event in events])


async def find_locked(tx: Transaction, keys: Collection[EventKey]) -> dict[EventKey, str]:
    """Return the states of the events that are there; until the transaction ends no other one changes them."""
    rows = await tx.fetch_each(_FIND_LOCKED, [key._asdict() for key in sorted(keys)])
    return {EventKey(row["tenant_id"], row["event_id"]): row["state"] for row in rows}


async def put_back(tx: Transaction, keys: Collection[EventKey], now: int) -> None:
    """Have buried events that are locked published after all, with all attempts before them."""
    await tx.executemany(_SQL["put_back"], [{**key._asdict(), "now": now} for key in sorted(keys)])


async def page_of_buried(reader: Reader, tenant_id: str, after: Sequence[str | int], limit: int) -> Sequence[Row]:
    """Read buried events, oldest first, behind a place: when it was added, and its id."""
    added_at, event_id = after
    parameters = {"tenant_id": tenant_id, "added_at": added_at, "event_id": event_id, "limit": limit}
    return await reader.fetch(_SQL["page_of_buried"], parameters)


def stored_message(row: Row, _at: int) -> Message:
    """Return the message of a claimed row: byte for byte the same each time it is published."""
    trace = {name: row[name] for name in ("traceparent", "tracestate") if row[name] is not None}
    return Message(Address(Kind.EVENT, row["tenant_id"], row["message"]), row["event_id"], row["body"].encode(), trace)


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
