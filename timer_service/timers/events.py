"""The `DueTimeReached` event of a claimed timer."""

from timer_service.core.codec import encode_event
from timer_service.core.database import Row
from timer_service.core.instant import format_instant
from timer_service.core.message import Message
from timer_service.core.stored_json import check_stored, quote
from timer_service.timers.messages import DueTimeReached


def due_time_reached(row: Row, at: int) -> Message:
    """Return the event of a claimed timer that fires at `at`. The event id comes from the row, so it never changes."""
    return encode_event(
        row["event_id"],
        DueTimeReached.type,
        row["tenant_id"],
        _payload(row, at),
        at,
        row["correlation_id"],
        row["causation_id"],
        row["traceparent"],
        row["tracestate"],
    )


def _payload(row: Row, at: int) -> str:
    data = "" if row["data"] is None else f',"data":{check_stored(row["data"])}'
    return (
        f'{{"tenantId":{quote(row["tenant_id"])},"serviceCallId":{quote(row["service_call_id"])},'
        f'"dueAt":"{format_instant(row["due_at"])}","reachedAt":"{format_instant(at)}"{data}}}'
    )
