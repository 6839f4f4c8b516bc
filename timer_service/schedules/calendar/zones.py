"""Time zones: their names, and the stretches of time in which a zone has one offset. Pure, but for the zone data."""

import hashlib
import re
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from timer_service.core.values.instant import LATEST
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.zone_data import zone_data

LAST_SECOND = LATEST // 1000
"""The last second of the year 9999 (UTC)."""

_DAY = 86_400
_LAST_YEAR = 9999
_LONGEST_NAME = 64
_QUOTED = 40
_LONGEST_ABBREVIATION = 5
_OFFSET = re.compile(
    r"((?P<posix>ETC/GMT)|(ETC/)?(UTC|GMT|UT)?) ?(?P<sign>[+-])(?P<hours>\d\d?)(:?(?P<minutes>\d\d))?", re.ASCII
)
_WITHOUT_SUMMER_TIME = frozenset({"EST", "MST"})
_ABBREVIATIONS = {  # the places that are meant most often
    "EST": ("America/New_York", "America/Panama (UTC-5 all year)"),
    "MST": ("America/Denver", "America/Phoenix (UTC-7 all year)"),
    **dict.fromkeys(("PST", "PDT"), ("America/Los_Angeles",)),
    "EDT": ("America/New_York",),
    "CDT": ("America/Chicago",),
    "MDT": ("America/Denver",),
    "CST": ("America/Chicago", "Asia/Shanghai"),
    "BST": ("Europe/London",),
    **dict.fromkeys(("CEST", "MEZ", "MESZ"), ("Europe/Berlin",)),
    "IST": ("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
    "JST": ("Asia/Tokyo",),
    "AEST": ("Australia/Sydney", "Australia/Brisbane"),
    "Z": ("UTC",),
}


class Stretch(NamedTuple):
    """A time in which a zone has one offset. It ends at the end of a year (UTC) at the latest.

    `start` (included) and `end` (not included) are seconds since 1970 UTC. `offset` and `offset_before`, the offset
    of the second before `start`, are seconds east of UTC.
    """

    start: int
    end: int
    offset: int
    offset_before: int


def check_zone(name: str) -> None:
    """Raise `RecurrenceError` (UNKNOWN_ZONE) if the time zone data of this instance does not have the IANA name.

    EST and MST are refused too: they have no summer time, unlike the clocks of almost all places that are meant.
    """
    if name not in _names() or name in _WITHOUT_SUMMER_TIME:
        raise _unknown(name)


def stretch_at(zone: str, second: int) -> Stretch:
    """Return the stretch of a zone in which a second lies, from 1970-01-01 to `LAST_SECOND`.

    Raises `RecurrenceError` (UNKNOWN_ZONE) if this instance does not know the zone.
    """
    year = datetime.fromtimestamp(second, UTC).year
    return next(each for each in stretches_of_year(zone, year) if second < each.end)


class Zone(NamedTuple):
    """The data of a zone, as this process uses them: the file may be replaced while it runs."""

    info: ZoneInfo
    rules: str
    """A hash of the data. Equal hashes mean equal slots."""


@cache
def load_zone(zone: str) -> Zone:
    """Return the data of a zone, which are read once.

    Raises `RecurrenceError` (UNKNOWN_ZONE) if this instance does not know the zone.
    """
    if zone not in _names():
        raise _unknown(zone)
    paths = (Path(folder, zone) for folder in zoneinfo.TZPATH)
    found = next((path for path in paths if path.is_file()), None)
    try:
        data = (files("tzdata").joinpath("zoneinfo", zone) if found is None else found).read_bytes()
        info = ZoneInfo.from_file(BytesIO(data), zone)
    except (ValueError, OSError) as error:
        raise _unknown(zone) from error
    return Zone(info, hashlib.blake2b(data, digest_size=8).hexdigest())


@lru_cache(maxsize=2048)  # computing one takes 0.3 ms
def stretches_of_year(zone: str, year: int) -> tuple[Stretch, ...]:
    """Return the stretches of a zone in a year (UTC)."""
    info = load_zone(zone).info
    return tuple(_find_stretches(info, _start_of(year), _start_of(year + 1)))


def _find_stretches(zone: ZoneInfo, start: int, end: int) -> Iterator[Stretch]:
    """Yield the stretches of a zone in [`start`, `end`), in order."""
    offset_before = _offset(zone, start - 1)
    while start < end:
        offset = _offset(zone, start)
        change = _next_change(zone, start, end)
        yield Stretch(start, change, offset, offset_before)
        start, offset_before = change, offset


def _next_change(zone: ZoneInfo, start: int, end: int) -> int:
    """Return the first second after `start` at which the offset differs, or `end`.

    One offset is read for each day: since 1970 no zone has changed its offset and changed it back within six days.
    """
    offset = _offset(zone, start)
    same = start
    while (other := min(same + _DAY, end - 1)) > same and _offset(zone, other) == offset:
        same = other
    if other == same:  # the last second before `end` has the same offset
        return end
    while other - same > 1:
        middle = (same + other) // 2
        if _offset(zone, middle) == offset:
            same = middle
        else:
            other = middle
    return other


def _offset(zone: ZoneInfo, second: int) -> int:
    """Return the offset of a zone at a second, in seconds east of UTC."""
    # In the last day of the year 9999 the local year may be 10000, which datetime does not have.
    there = datetime.fromtimestamp(min(second, LAST_SECOND - _DAY), zone)
    return (there.utcoffset() or timedelta()) // timedelta(seconds=1)


def _start_of(year: int) -> int:
    """Return the first second of a year, also of the year 10000, which datetime does not have."""
    return LAST_SECOND + 1 if year > _LAST_YEAR else int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


@cache
def _names() -> frozenset[str]:
    """Return the IANA names in the zone data, without those of a machine whose zone is its own or not set."""
    return frozenset(available_timezones() - {"localtime", "Factory"})


def _unknown(name: str) -> RecurrenceError:
    near = _nearest(name)
    remedy = f"write {' or '.join(near)} instead" if near else "write an IANA name such as Europe/Berlin instead"
    if found := _OFFSET.fullmatch(name.upper()):
        return RecurrenceError("UNKNOWN_ZONE", "zone", f"{name[:_QUOTED]!r} is an offset; {_advise_offset(found)}")
    what = f"is not a time zone that this instance knows ({zone_data()})"
    if name.upper() in _ABBREVIATIONS:
        what = "is an abbreviation, not the rules of a place"
    elif name.lower().endswith(" time"):
        what = "is a name of Windows"
    return RecurrenceError("UNKNOWN_ZONE", "zone", f"{name[:_QUOTED]!r} {what}; {remedy}")


@lru_cache(maxsize=256)  # computing them takes 3 ms
def _nearest(name: str) -> tuple[str, ...]:
    """Return at most three known names that look like a name."""
    if len(name) > _LONGEST_NAME:
        return ()
    if (meant := _ABBREVIATIONS.get(name.upper())) is not None:
        return meant
    lower = name.lower()
    known = {each.lower(): each for each in sorted(_names())}
    if lower in known:
        return (known[lower],)
    # Another abbreviation or offset means another time, however near its name is.
    is_place = "/" in name or (len(name) > _LONGEST_ABBREVIATION and not lower.endswith(" time"))
    cutoff = 0.8 if "/" in name else 0.6  # a city without its region is less near
    has_number = any(each.isdigit() for each in name)
    return (
        tuple(known[each] for each in get_close_matches(lower, known, 3, cutoff)) if is_place and not has_number else ()
    )


def _advise_offset(found: re.Match[str]) -> str:
    """Return what to write instead of an offset from UTC."""
    east = int(found["hours"]) * (-1 if found["sign"] == "-" else 1)
    if found["posix"]:
        east = -east
    name = "UTC" if east == 0 else f"Etc/GMT{-east:+}"
    if int(found["minutes"] or 0) or name not in _names():
        return "write the IANA name of a place, such as Asia/Kolkata for UTC+5:30"
    return f"write the IANA name of a place, or {name} for UTC{east:+} all year (the sign of these names is reversed)"
