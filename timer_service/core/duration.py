"""Durations: whole milliseconds in the code, ISO 8601 on the wire."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

LONGEST = timedelta(days=366)
_LONGEST_MS = LONGEST // timedelta(milliseconds=1)
_UNITS_MS = (604_800_000, 86_400_000, 3_600_000, 60_000, 1000)
_PATTERN = (
    r"^P(?=[0-9]|T[0-9])([0-9]{1,9}W)?([0-9]{1,9}D)?"
    r"(T(?=[0-9])([0-9]{1,9}H)?([0-9]{1,9}M)?([0-9]{1,12}(\.[0-9]{1,3})?S)?)?$"
)
_ISO = re.compile(
    r"P(?=[0-9]|T[0-9])(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,12})(?:\.([0-9]{1,3}))?S)?)?"
)


def parse_duration(text: object) -> int:
    """Return an ISO 8601 duration in milliseconds. A day has 24 hours.

    Raises `PydanticCustomError` if the text is not a duration of weeks, days, hours, minutes and seconds, with at most
    three decimals of a second, or if it is longer than 366 days.
    """
    match = _ISO.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise PydanticCustomError(
            "duration",
            "must be an ISO 8601 duration of weeks, days, hours, minutes and seconds, such as P1D, PT1H30M or PT0.250S",
        )
    *whole, fraction = match.groups(default="0")
    milliseconds = sum(int(number) * unit for number, unit in zip(whole, _UNITS_MS, strict=True))
    milliseconds += int(fraction.ljust(3, "0"))
    if milliseconds > _LONGEST_MS:
        raise PydanticCustomError("duration", "must be at most {days} days", {"days": LONGEST.days})
    return milliseconds


def format_duration(milliseconds: int) -> str:
    """Return a duration as ISO 8601, in seconds: PT90S, PT0.250S."""
    seconds, fraction = divmod(milliseconds, 1000)
    return f"PT{seconds}.{fraction:03d}S" if fraction else f"PT{seconds}S"


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "format": "duration", "pattern": _PATTERN}),
]
