"""Reads what a durable consumer was given, whatever it is."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from timer_service.client.errors import TimerServiceError
from timer_service.client.events import Event, read_event
from timer_service.client.receive.park import UNREADABLE


def read_delivered(body: bytes, message_id: str | None, stored_at: datetime, tenant: str) -> tuple[Event, str | None]:
    """Return the event in a message, and why it cannot be read. Then the event is one with the raw message."""
    try:
        return read_event(body), None
    except TimerServiceError as error:
        raw = _read_loosely(body, message_id, tenant)
        return Event(id=raw["id"], tenant=tenant, created_at=stored_at, raw=raw), str(error)


def _read_loosely(body: bytes, message_id: str | None, tenant: str) -> Mapping[str, Any]:
    """Return a JSON object with an id, a type and a payload, which has the message as text if it is no such object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    wanted = {"id": str, "type": str, "payload": dict}
    if isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in wanted.items()):
        return found
    event_id = message_id or hashlib.blake2b(body, digest_size=16).hexdigest()
    return {"id": event_id, "type": UNREADABLE, "tenantId": tenant, "payload": {"text": body.decode(errors="replace")}}
