"""Checks of arguments, made before the client sends anything. Each raises ValueError with the name of the argument."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import isnan
from typing import Any
from zoneinfo import ZoneInfo

from timer_service.core.values.duration import LONGEST, format_duration
from timer_service.core.values.instant import parse_instant
from timer_service.core.values.message import IDENTIFIER_PATTERN, TENANT_PATTERN

_STATUS = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,100}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_QUERY = re.compile("[a-z0-9-]{1,100}")


def check_tenant(tenant: object) -> str:
    """Return a valid tenant."""
    if not isinstance(tenant, str) or not re.fullmatch(TENANT_PATTERN, tenant):
        raise ValueError("tenant must be 1 to 64 letters, digits, dashes or underscores")
    return tenant


def check_identifier(argument: str, name: object) -> str:
    """Return a valid id of a timer, signal, work item, schedule, run or job."""
    if not isinstance(name, str) or not re.fullmatch(IDENTIFIER_PATTERN, name) or _SURROGATE.search(name):
        raise ValueError(f"{argument} must be 1 to 200 characters, without control characters and surrogates")
    return name


def check_status(argument: str, status: object) -> str:
    """Return a valid status of a work item."""
    if not isinstance(status, str) or not _STATUS.fullmatch(status) or _SURROGATE.search(status):
        raise ValueError(f"{argument} must be 1 to 100 characters, without control characters and surrogates")
    return status


def check_text(argument: str, text: object) -> str:
    """Return a text that a message can hold."""
    if not isinstance(text, str) or _SURROGATE.search(text):
        raise ValueError(f"{argument} must be text without surrogates")
    return text


def check_query(argument: str, name: object) -> str:
    """Return the name of a query."""
    if not isinstance(name, str) or not _QUERY.fullmatch(name):
        raise ValueError(f"{argument} must be the name of a query, such as get-timer")
    return name


def check_zone(argument: str, zone: object) -> str:
    """Return the name of a time zone."""
    name = zone.key if isinstance(zone, ZoneInfo) else zone
    if not isinstance(name, str):
        raise ValueError(f"{argument} must be the name of a time zone, or a ZoneInfo that has a name")  # noqa: TRY004
    return check_text(argument, name)


def check_whole(argument: str, number: object) -> int:
    """Return a whole number."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{argument} must be a whole number")  # noqa: TRY004 - like every wrong argument
    return number


def check_seconds(argument: str, seconds: object) -> float:
    """Return a number of seconds."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or isnan(seconds):
        raise ValueError(f"{argument} must be a number of seconds")
    return seconds


def check_callable(argument: str, function: Callable[[int], object]) -> None:
    """Check that a value can be called."""
    if not callable(function):
        raise ValueError(f"{argument} must be a function")  # noqa: TRY004 - like every wrong argument


def check_choice(argument: str, value: str, choices: type[StrEnum]) -> str:
    """Return `value` if it is one of `choices`."""
    if value not in list(choices):
        raise ValueError(f"{argument} must be one of {', '.join(choices)}")
    return str(value)


def wire_instant(argument: str, at: datetime) -> str:
    """Return a datetime in its wire form."""
    if not isinstance(at, datetime):
        raise ValueError(f"{argument} must be a datetime")  # noqa: TRY004 - like every wrong argument
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


def wire_distance(argument: str, duration: timedelta) -> str:
    """Return a duration that repeats, in its wire form. It is not rounded, because the error would add up."""
    text = wire_duration(argument, duration)
    if duration % timedelta(milliseconds=1):
        raise ValueError(f"{argument} must be whole milliseconds")
    return text


def write_json(argument: str, body: Any) -> bytes:
    """Return a message body that contains the value of `argument`."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{argument} must be JSON: {error}") from error


def check_mapping(argument: str, values: object) -> Mapping[str, Any]:
    """Return a mapping."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{argument} must be a dict")  # noqa: TRY004 - like every wrong argument
    return values


def check_list(argument: str, values: object) -> list[Any]:
    """Return a list."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ValueError(f"{argument} must be a list")  # noqa: TRY004 - every wrong argument is a ValueError
    return list(values)
