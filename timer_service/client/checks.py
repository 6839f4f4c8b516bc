"""Checks of arguments, made before the client sends anything. Each raises ValueError with the name of the argument."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from timer_service.core.duration import LONGEST, format_duration
from timer_service.core.instant import parse_instant
from timer_service.core.message import IDENTIFIER_PATTERN, TENANT_PATTERN

_STATUS = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,100}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_tenant(tenant: str) -> str:
    """Return a valid tenant."""
    if not re.fullmatch(TENANT_PATTERN, tenant):
        raise ValueError("tenant must be 1 to 64 letters, digits, dashes or underscores")
    return tenant


def check_identifier(argument: str, name: str) -> str:
    """Return a valid id of a timer, signal, work item, schedule, run or job."""
    if not re.fullmatch(IDENTIFIER_PATTERN, name) or _SURROGATE.search(name):
        raise ValueError(f"{argument} must be 1 to 200 characters, without control characters and surrogates")
    return name


def check_status(argument: str, status: str) -> str:
    """Return a valid status of a work item."""
    if not _STATUS.fullmatch(status) or _SURROGATE.search(status):
        raise ValueError(f"{argument} must be 1 to 100 characters, without control characters and surrogates")
    return status


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


def wire_duration(argument: str, duration: timedelta) -> str:
    """Return a duration in its wire form, rounded up to the millisecond."""
    if not isinstance(duration, timedelta):
        raise ValueError(f"{argument} must be a timedelta")  # noqa: TRY004 - like every wrong argument
    if not timedelta() <= duration <= LONGEST:
        raise ValueError(f"{argument} must lie between 0 and {LONGEST.days} days")
    return format_duration(-(-duration // timedelta(milliseconds=1)))


def write_json(argument: str, body: Any) -> bytes:
    """Return a message body that contains the value of `argument`."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{argument} must be JSON: {error}") from error


def check_list(argument: str, values: object) -> list[Any]:
    """Return a list."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{argument} must be a list")  # noqa: TRY004 - every wrong argument is a ValueError
    return list(values)
