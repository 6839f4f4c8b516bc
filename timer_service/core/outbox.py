"""The outbox: events to publish, written in the same transaction as the state they announce.

A relay over `OUTBOX` publishes them, at least once and under their own ids. What is published is deleted; what can't be
stays, buried, with the reason.
"""

from collections.abc import Collection

from timer_service.core.census import Counted
from timer_service.core.codec import encode
from timer_service.core.database import Row, Transaction
from timer_service.core.lease import LeasedTable
from timer_service.core.message import Address, Event, Kind, Message
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.core", "outbox.sql")

OUTBOX = LeasedTable(
    name="outbox",
    key=("tenant_id", "event_id"),
    claimed=("tenant_id", "event_id", "message", "body", "traceparent", "tracestate", "added_at"),
    oldest_first="added_at",
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


async def add(tx: Transaction, events: Collection[Event], now: int) -> None:
    """Have events published once the transaction commits; one that is there already (by its id) stays as it is.

    Whoever adds wakes the relay's loop afterwards, or it meets them at its next poll.
    """
    await tx.executemany(_SQL["add"], [_parameters(event, now) for event in events])


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
    }
