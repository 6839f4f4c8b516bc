"""Durations: milliseconds in the code, ISO 8601 durations or whole milliseconds on the wire. Pure."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY
LONGEST = timedelta(days=366)
LONGEST_MS = LONGEST // timedelta(milliseconds=1)

_SCHEMA_PATTERN = (
    r"^P(?=[0-9]|T[0-9])([0-9]{1,12}W)?([0-9]{1,12}D)?"
    r"(T(?=[0-9])([0-9]{1,12}H)?([0-9]{1,12}M)?([0-9]{1,12}(\.[0-9]{1,3})?S)?)?$"
)
_PATTERN = re.compile(
    r"P(?=[\dT])((?P<weeks>\d{1,12})W)?((?P<days>\d{1,12})D)?"
    r"(T(?=\d)((?P<hours>\d{1,12})H)?((?P<minutes>\d{1,12})M)?((?P<seconds>\d{1,12})(\.(?P<fraction>\d{1,3}))?S)?)?",
    re.ASCII,
)
_UNITS = {"weeks": WEEK, "days": DAY, "hours": HOUR, "minutes": MINUTE, "seconds": SECOND}


def parse_duration(value: object) -> int:
    """Return a duration in milliseconds, at least 0.

    The value is an ISO 8601 duration of weeks, days (24 hours), hours, minutes and seconds, or whole milliseconds.
    Raises `ValueError`. Its text completes a sentence that begins with the name of the field.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("must not be negative")
        return value
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            "must be an ISO 8601 duration of weeks, days, hours, minutes and seconds, such as PT1H30M or P1D, "
            "or a whole number of milliseconds; months and years have no fixed length, so write days instead"
        )
    whole = sum(int(match[name] or 0) * length for name, length in _UNITS.items())
    return whole + int((match["fraction"] or "").ljust(3, "0"))


def format_duration(milliseconds: int) -> str:
    """Return a duration as ISO 8601, with days, hours, minutes and seconds: `P1DT30M`, `PT0S`, `PT1.5S`."""
    if not milliseconds:
        return "PT0S"
    days, rest = divmod(milliseconds, DAY)
    hours, rest = divmod(rest, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds = f"{rest // SECOND}.{rest % SECOND:03}".rstrip("0").rstrip(".")
    parts = [(hours, f"{hours}H"), (minutes, f"{minutes}M"), (rest, f"{seconds}S")]
    time = "".join(text for value, text in parts if value)
    day = f"{days}D" if days else ""
    return f"P{day}T{time}" if time else f"P{day}"


def parse_between(least: int, most: int) -> BeforeValidator:
    """Return the validator of a field that is a duration from `least` to `most` milliseconds."""

    def parse(value: object) -> int:
        try:
            found = parse_duration(value)
        except ValueError as error:
            raise PydanticCustomError("duration", "{reason}", {"reason": str(error)}) from error
        if not least <= found <= most:
            bounds = {"least": format_duration(least), "most": format_duration(most)}
            raise PydanticCustomError("duration", "must be from {least} to {most}", bounds)
        return found

    return BeforeValidator(parse)


def schema_between(least: int, most: int) -> WithJsonSchema:
    """Return the JSON schema of a field that is a duration from `least` to `most` milliseconds."""
    integer = {"type": "integer", "minimum": least, "maximum": most}
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": _SCHEMA_PATTERN}, integer]})


WRITE_DURATION = PlainSerializer(format_duration)
Duration = Annotated[int, parse_between(0, LONGEST_MS), WRITE_DURATION, schema_between(0, LONGEST_MS)]
"""A field that is a duration of at most 366 days."""
