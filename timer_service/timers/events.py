"""The event of a claimed timer: `DueTimeReached`, or `TimerExpired` if it fires too late."""

import hashlib

from timer_service.core.ports.database import Row
from timer_service.core.values.codec import encode_event
from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Message
from timer_service.core.values.stored_json import check_stored, quote
from timer_service.timers.messages import DueTimeReached, TimerExpired


def timer_event(row: Row, at: int) -> Message:
    """Return the event of a claimed timer that fires at `at`: `TimerExpired` if this is at or after its expiry.

    The two events differ in their ids. An id never changes, because it comes from the row.
    """
    expires_at: int | None = row["expires_at"]
    if expires_at is None or at < expires_at:
        return _event(row, at, DueTimeReached.type, row["event_id"], "reachedAt")
    return _event(row, at, TimerExpired.type, expired_event_id(row["event_id"]), "expiredAt")


def expired_event_id(event_id: str) -> str:
    """Return the id of the `TimerExpired` of a timer whose `DueTimeReached` would have the id `event_id`."""
    return hashlib.blake2b(f"{event_id}\0expired".encode(), digest_size=16).hexdigest()


def _event(row: Row, at: int, message_type: str, event_id: str, instant: str) -> Message:
    """Return an event of a timer. `instant` is the name of the field for `at`."""
    data = "" if row["data"] is None else f',"data":{check_stored(row["data"])}'
    payload = (
        f'{{"tenantId":{quote(row["tenant_id"])},"serviceCallId":{quote(row["service_call_id"])},'
        f'"dueAt":"{format_instant(row["due_at"])}","{instant}":"{format_instant(at)}"{data}}}'
    )
    return encode_event(
        event_id,
        message_type,
        row["tenant_id"],
        payload,
        at,
        row["correlation_id"],
        row["causation_id"],
        row["traceparent"],
        row["tracestate"],
        row["topic"],
    )
