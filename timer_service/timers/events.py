"""The `DueTimeReached` event of a claimed timer."""

from typing import Any

from pydantic_core import from_json

from timer_service.core.codec import encode
from timer_service.core.database import Row
from timer_service.core.instant import format_instant
from timer_service.core.message import Event, Message, Trace
from timer_service.timers.messages import DueTimeReached


def due_time_reached(row: Row, at: int) -> Message:
    """Return the event of a claimed timer that fires at `at`. The event id comes from the row, so it never changes."""
    payload: dict[str, Any] = {
        "tenantId": row["tenant_id"],
        "serviceCallId": row["service_call_id"],
        "dueAt": format_instant(row["due_at"]),
        "reachedAt": format_instant(at),
    }
    if row["data"] is not None:
        payload["data"] = from_json(row["data"])
    return encode(
        Event(
            id=row["event_id"],
            type=DueTimeReached.type,
            tenant=row["tenant_id"],
            payload=payload,
            timestamp_ms=at,
            correlation_id=row["correlation_id"],
            causation_id=row["causation_id"],
            trace=Trace(row["traceparent"], row["tracestate"]),
        )
    )
