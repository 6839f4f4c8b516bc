"""Calendar intervals: every so many days, weeks or months from an anchor on. Pure, and without time zones.

A wall second is a reading of a wall clock, counted as in `cron`.
"""

import re
from calendar import monthrange
from datetime import date, datetime
from enum import StrEnum
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from timer_service.schedules.calendar.zones import LAST_SECOND

MAX_EVERY = 500
"""The most days, weeks or months of an interval. 500 months are less than the 50 years of a search."""
WALL_PATTERN = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?$"

_WALL = re.compile(WALL_PATTERN[1:-1].replace("T", "T(?!24)"), re.ASCII)  # as in `values/instant.py`
_FIRST_DAY = date(1970, 1, 1)
_DAY = 86_400
_LAST_YEAR = 9999


class Unit(StrEnum):
    """The unit of a calendar interval."""

    DAYS = "days"
    WEEKS = "weeks"
    MONTHS = "months"


class CalendarInterval(NamedTuple):
    """The anchor, and every later wall second that is a multiple of `every` units away from it.

    In a month without the day of the anchor, it is the last day of the month.
    """

    every: int
    unit: str
    anchor: str
    """ISO 8601 with seconds and without an offset."""


def parse_wall_time(text: object) -> str:
    """Return a wall-clock time with seconds. Raises `PydanticCustomError`; its text completes a sentence."""
    if not isinstance(text, str) or not _WALL.fullmatch(text):
        must = "must be a wall-clock time such as 2026-01-02T09:00, without an offset: `zone` names the time zone"
        raise PydanticCustomError("wall_time", must)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise PydanticCustomError("wall_time", "is not a valid time: {why}", {"why": str(error)}) from error
    if at.date() < _FIRST_DAY:
        raise PydanticCustomError("wall_time", "must not be before 1970-01-01")
    return at.isoformat()


def anchor_second(interval: CalendarInterval) -> int:
    """Return the wall second of the anchor."""
    anchor = datetime.fromisoformat(interval.anchor)
    return _second(anchor.date(), anchor)


def first_match(interval: CalendarInterval, first: int) -> int | None:
    """Return the first wall second from `first` on that matches, or None if it would be after the year 9999."""
    return _nth(interval, _count_before(interval, first))


def last_match(interval: CalendarInterval, last: int) -> int | None:
    """Return the last wall second up to `last` that matches, or None if it would be before the anchor."""
    count = _count_before(interval, min(last, LAST_SECOND) + 1)
    return _nth(interval, count - 1) if count else None


def _count_before(interval: CalendarInterval, second: int) -> int:
    """Return how many matches are earlier than a wall second."""
    anchor = anchor_second(interval)
    if second <= anchor:
        return 0
    if (length := _length(interval)) is not None:
        return -((anchor - second) // length)  # rounded up
    day = date.fromordinal(_FIRST_DAY.toordinal() + min(second, LAST_SECOND) // _DAY)
    number = (_month(day) - _month(datetime.fromisoformat(interval.anchor))) // interval.every
    in_month = _nth(interval, number)  # in the month of `second`, or in an earlier one
    return number + 1 if in_month is not None and in_month < second else number


def _nth(interval: CalendarInterval, number: int) -> int | None:
    """Return the wall second of a match, counted from the anchor, which is 0. None: it is after the year 9999."""
    if (length := _length(interval)) is not None:
        second = anchor_second(interval) + number * length
        return second if second <= LAST_SECOND else None
    anchor = datetime.fromisoformat(interval.anchor)
    year, month = divmod(_month(anchor) + number * interval.every, 12)
    if year > _LAST_YEAR:
        return None
    last_day = monthrange(year, month + 1)[1]
    return _second(date(year, month + 1, min(anchor.day, last_day)), anchor)


def _length(interval: CalendarInterval) -> int | None:
    """Return the distance of matches in wall seconds; None if it depends on the month."""
    return {Unit.DAYS: interval.every * _DAY, Unit.WEEKS: interval.every * 7 * _DAY}.get(Unit(interval.unit))


def _month(day: date) -> int:
    """Return the number of a month since the year 0."""
    return day.year * 12 + day.month - 1


def _second(day: date, time: datetime) -> int:
    """Return the wall second of a day, at the time of day of `time`."""
    return (day - _FIRST_DAY).days * _DAY + time.hour * 3600 + time.minute * 60 + time.second
