"""Checks what callers give before anything is sent; each raises ValueError that names the argument."""

import json
import re
from datetime import UTC, datetime
from typing import Any

from timer_service.client.views import SignalStatus, State
from timer_service.core.instant import parse_instant
from timer_service.core.message import IDENTIFIER_PATTERN, TENANT_PATTERN


def check_tenant(tenant: str) -> str:
    """Return a tenant that a subject can hold."""
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise ValueError("tenant must be 1 to 64 letters, digits, dashes or underscores")
    return tenant


def check_identifier(argument: str, name: str) -> str:
    """Return what names a timer, a signal or a work item."""
    if not re.fullmatch(IDENTIFIER_PATTERN, name):
        raise ValueError(f"{argument} must be 1 to 200 characters, none of them a control character")
    return name


def check_state(state: str) -> str:
    """Return the name of a state."""
    if state not in list(State):
        raise ValueError(f"state must be one of {', '.join(State)}")
    return str(state)


def check_signal_status(status: str) -> str:
    """Return the name of a signal's status."""
    if status not in list(SignalStatus):
        raise ValueError(f"status must be one of {', '.join(SignalStatus)}")
    return str(status)


def wire_instant(argument: str, at: datetime) -> str:
    """Return an instant as it goes over the wire."""
    if at.utcoffset() is None:
        raise ValueError(f"{argument} must carry a timezone")
    try:
        text = at.astimezone(UTC).isoformat()  # local offsets can have seconds, which ISO 8601 can't write
        parse_instant(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{argument} must lie between 1970-01-01 and 9999-12-31 (UTC)") from error
    return text


def write_json(body: Any) -> bytes:
    """Return a body that may hold `data`."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"data must be JSON: {error}") from error
