"""Checks of arguments, made before the client sends anything. Each raises ValueError with the name of the argument."""

import json
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from timer_service.core.instant import parse_instant
from timer_service.core.message import IDENTIFIER_PATTERN, TENANT_PATTERN


def check_tenant(tenant: str) -> str:
    """Return a valid tenant."""
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise ValueError("tenant must be 1 to 64 letters, digits, dashes or underscores")
    return tenant


def check_identifier(argument: str, name: str) -> str:
    """Return a valid id of a timer, signal, work item, run or job."""
    if not re.fullmatch(IDENTIFIER_PATTERN, name):
        raise ValueError(f"{argument} must be 1 to 200 characters without control characters")
    return name


def check_choice(argument: str, value: str, choices: type[StrEnum]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in list(choices):
        raise ValueError(f"{argument} must be one of {', '.join(choices)}")
    return str(value)


def wire_instant(argument: str, at: datetime) -> str:
    """Return a datetime in its wire form."""
    if at.utcoffset() is None:
        raise ValueError(f"{argument} must have a timezone")
    try:
        text = at.astimezone(UTC).isoformat()  # in UTC, because an offset of a timezone can have seconds
        parse_instant(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{argument} must lie between 1970-01-01 and 9999-12-31 (UTC)") from error
    return text


def write_json(body: Any) -> bytes:
    """Return a message body that may contain `data`."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"data must be JSON: {error}") from error
