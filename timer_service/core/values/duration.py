"""Durations: milliseconds in the code, ISO 8601 durations or whole milliseconds on the wire. Pure."""

import re
from datetime import timedelta

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY
LONGEST = timedelta(days=366)
LONGEST_MS = LONGEST // timedelta(milliseconds=1)

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
            "or a whole number of milliseconds; months and years have no fixed length"
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
