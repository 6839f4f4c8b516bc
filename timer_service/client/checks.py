"""Checks of arguments, made before the client sends anything. Each raises ValueError with the name of the argument."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Any, TypeVar, get_args

from timer_service.client.convert import to_json
from timer_service.core.values.address import IDENTIFIER_PATTERN, TENANT_PATTERN, TOPIC_PATTERN
from timer_service.core.values.duration import LONGEST, format_duration

_T = TypeVar("_T")
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
_SURROGATE = re.compile("[\ud800-\udfff]")


def optional(check: Callable[..., _T], argument: str, value: Any, *more: Any) -> _T | None:
    """Return the result of a check, or None if the argument is not given."""
    return None if value is None else check(argument, value, *more)


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def check_tenant(tenant: object) -> str:
    """Return a valid tenant."""
    return _match("tenant", tenant, TENANT_PATTERN, "1 to 64 letters, digits, dashes or underscores")


def check_name(argument: str, name: object, most: int = 64) -> str:
    """Return the name of a consumer or a stream."""
    return _match(argument, name, rf"[A-Za-z0-9_-]{{1,{most}}}", f"1 to {most} letters, digits, dashes or underscores")


def check_reason(reason: object) -> str:
    """Return a valid reason why an event is parked."""
    must = "1 to 1000 characters, without the character U+0000 and surrogates"
    return _match("reason", reason, r"[^\x00]{1,1000}", must)


def check_identifier(argument: str, name: object) -> str:
    """Return a valid id of a timer, signal, work item, schedule, run or job."""
    must = "1 to 200 characters, without control characters and surrogates"
    return _match(argument, name, IDENTIFIER_PATTERN, must)


def check_topic(argument: str, topic: object) -> str:
    """Return a valid topic of a timer or schedule."""
    must = "1 to 64 lower-case letters, digits, dashes or underscores, and begin with a letter or digit"
    return _match(argument, topic, TOPIC_PATTERN, must)


def check_status(argument: str, status: object) -> str:
    """Return a valid status of a work item."""
    must = "1 to 100 characters, without control characters and surrogates"
    return _match(argument, status, r"[^\x00-\x1f\x7f-\x9f]{1,100}", must)


def check_text(argument: str, text: object) -> str:
    """Return a text that a message can hold."""
    return _match(argument, text, r"(?s:.*)", "text without surrogates")


def check_query(argument: str, name: object) -> str:
    """Return the name of a query."""
    return _match(argument, name, "[a-z0-9-]{1,100}", "the name of a query, such as get-timer")


def check_zone(argument: str, zone: object) -> str:
    """Return the name of a time zone."""
    name = getattr(zone, "key", zone)  # of a ZoneInfo, whose module takes long to import
    return _match(argument, name, r"(?s:.*)", "the name of a time zone, or a ZoneInfo that has a name")


def check_whole(argument: str, number: Any) -> int:
    """Return a whole number."""
    _require(isinstance(number, int) and not isinstance(number, bool), argument, "a whole number")
    return int(number)


def check_count(argument: str, number: Any) -> int:
    """Return a whole number that is at least 1."""
    _require(check_whole(argument, number) >= 1, argument, "at least 1")
    return int(number)


def check_seconds(argument: str, seconds: Any) -> float:
    """Return a number of seconds."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and not isnan(seconds)
    _require(is_number, argument, "a number of seconds")
    return float(seconds)


def check_type(argument: str, value: Any, wanted: type[_T], must: str) -> _T:
    """Return a value of a type. `must` describes it."""
    _require(isinstance(value, wanted), argument, must)
    found: _T = value
    return found


def check_choice(argument: str, value: object, choices: Any) -> str:
    """Return `value` if it is one of `choices`, a `Literal`."""
    names: tuple[str, ...] = get_args(choices)
    _require(value in names, argument, f"one of {', '.join(names)}")
    return str(value)


def check_mapping(argument: str, values: Any) -> Mapping[str, Any]:
    """Return a mapping."""
    _require(isinstance(values, Mapping), argument, "a dict")
    found: Mapping[str, Any] = values
    return found


def check_list(argument: str, values: Any) -> list[Any]:
    """Return a list."""
    _require(isinstance(values, Sequence) and not isinstance(values, str | bytes), argument, "a list")
    return list(values)


def wire_instant(argument: str, at: datetime) -> str:
    """Return a datetime in its wire form."""
    _require(isinstance(at, datetime), argument, "a datetime")
    if at.utcoffset() is None:
        raise ValueError(f"{argument} must have a timezone: UTC, or a ZoneInfo if it is the time of a place")
    try:
        utc = at.astimezone(UTC)  # an offset of a timezone can have seconds
    except OverflowError:
        utc = datetime.min.replace(tzinfo=UTC)
    if not _EARLIEST <= utc <= _LATEST:
        raise ValueError(f"{argument} must lie between 1970-01-01 and 9999-12-31 (UTC)")
    return utc.isoformat()


def wire_duration(argument: str, duration: timedelta) -> str:
    """Return a duration in its wire form, rounded up to the millisecond."""
    _require(isinstance(duration, timedelta), argument, "a timedelta")
    if not timedelta() <= duration <= LONGEST:
        raise ValueError(f"{argument} must lie between 0 and {LONGEST.days} days")
    return format_duration(-(-duration // timedelta(milliseconds=1)))  # two signs, because // rounds down


def wire_distance(argument: str, duration: timedelta) -> str:
    """Return a duration that repeats, in its wire form. It is not rounded, because the error would add up."""
    text = wire_duration(argument, duration)
    _require(not duration % timedelta(milliseconds=1), argument, "whole milliseconds")
    return text


def write_json(argument: str, body: Any) -> bytes:
    """Return a message body that contains the value of `argument`."""
    try:
        return to_json(body).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{argument} must be JSON: {error}") from error


def _match(argument: str, text: object, pattern: str, must: str) -> str:
    """Return `text` if it is a text that the whole pattern matches, without surrogates."""
    if isinstance(text, str) and re.fullmatch(pattern, text) and not _SURROGATE.search(text):
        return text
    raise ValueError(f"{argument} must be {must}")


def _require(is_right: object, argument: str, must: str) -> None:
    if not is_right:
        raise ValueError(f"{argument} must be {must}")
