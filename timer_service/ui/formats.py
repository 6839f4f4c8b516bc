"""Texts of the page: times, numbers, and values of users."""

import json
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from timer_service.core.values.duration import parse_duration
from timer_service.core.values.instant import format_instant, parse_instant
from timer_service.schedules.calendar.cron import describe
from timer_service.schedules.calendar.errors import RecurrenceError
from timer_service.schedules.calendar.zones import stretch_at
from timer_service.ui.words import why_failed, why_rejected, why_skipped
from timer_service.visible import escape_hidden

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_SHOWN_UNITS = 2
_SMALL = 10
_SHORT = 160
_LONGEST_IN_LIST = 300
_LONGEST_JSON = 256 * 1024
_UNKNOWN = "\N{EN DASH}"


def visible(value: Any) -> Any:
    """Return a value with an escape for each character that is invisible or acts on others. Markup stays as it is."""
    return escape_hidden(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def milliseconds(value: str | int) -> int:
    """Return an instant as Unix milliseconds. Replies have ISO 8601."""
    return value if isinstance(value, int) else parse_instant(value)


def iso(value: str | int) -> str:
    """Return an instant as ISO 8601."""
    return format_instant(milliseconds(value))


def input_time(at: int | None) -> str:
    """Return an instant as an input of a date and a time has it, in UTC."""
    return "" if at is None else format_instant(at)[: len("2026-11-23T06:20:01")]


def day_and_time(value: str | int) -> str:
    """Return an instant in UTC, such as `2026-11-23 06:20:01`. Milliseconds are shown if there are any."""
    text = format_instant(milliseconds(value)).replace("T", " ").removesuffix("Z")
    return text.removesuffix(".000")


def local_time(value: str | int, zone: str) -> str:
    """Return what the clocks of a zone show at an instant; nothing if it is what UTC shows, or the zone is unknown."""
    at = milliseconds(value)
    try:
        offset = stretch_at(zone, at // 1000).offset
        return day_and_time(at + 1000 * offset)[: len("2026-11-23T06:20:01")] if offset else ""
    except (RecurrenceError, ValueError):
        return ""


def distance(value: str | int, now: int) -> str:
    """Return how far an instant is from now, such as `in 2 h 59 min`, rounded down."""
    ahead = milliseconds(value) - now
    if ahead == 0:
        return "now"
    return f"in {duration(ahead)}" if ahead > 0 else f"{duration(-ahead)} ago"


def duration(length: int) -> str:
    """Return milliseconds in their two largest units, rounded down. Milliseconds are shown alone only."""
    shown = _in_units(length)[:_SHOWN_UNITS]
    return " ".join(f"{number} {unit}" for number, unit in shown if number and (unit != "ms" or len(shown) == 1))


def length_of(value: str) -> str:
    """Return an ISO 8601 duration in words, exactly, such as `1 h 30 min`; nothing for a duration of 0."""
    return " ".join(f"{number} {unit}" for number, unit in _in_units(parse_duration(value)) if number)


def _in_units(length: int) -> list[tuple[int, str]]:
    """Return milliseconds as numbers of units, from the largest unit that is not 0 to the smallest one."""
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        number, length = divmod(length, size)
        if number or parts:
            parts.append((number, unit))
    return parts


def seconds(value: float | None) -> str:
    """Return seconds as a short text, such as `4.2 ms`; a dash for None."""
    if value is None:
        return _UNKNOWN
    if value >= 1:
        return f"{value:.1f} s" if value < _SMALL else f"{value:,.0f} s"
    thousandths = value * 1000
    return f"{thousandths:.1f} ms" if thousandths < _SMALL else f"{thousandths:.0f} ms"


def number(value: float | None) -> str:
    """Return a number with separators; a dash for None."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.1f}" if 0 < value < _SMALL and value != int(value) else f"{value:,.0f}"


def at_least(count: int, limit: int) -> str:
    """Return a count; `1,000+` if counting stopped at a limit."""
    return f"{count:,}+" if count >= limit else f"{count:,}"


class JsonText(NamedTuple):
    """A value as a page shows it."""

    shown: Markup
    is_cut: bool


def json_text(value: Any) -> JsonText:
    """Return a value as indented JSON, escaped for HTML. Its line breaks stay.

    A long text is cut: if 64 KiB are nested deeply, their indentation has 12 MB.
    """
    pieces, length = [], 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        pieces.append(piece)
        length += len(piece)
        if length > _LONGEST_JSON:
            break
    lines = "".join(pieces)[:_LONGEST_JSON].split("\n")
    return JsonText(Markup("\n").join(escape(visible(line)) for line in lines), length > _LONGEST_JSON)


def short(text: str) -> str:
    """Return the beginning of a text, as a list shows it."""
    return text if len(text) <= _LONGEST_IN_LIST else f"{text[:_LONGEST_IN_LIST]}\N{HORIZONTAL ELLIPSIS}"


def short_json(value: Any) -> str:
    """Return the beginning of a value as JSON on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}\N{HORIZONTAL ELLIPSIS}"


def input_value(text: str | None) -> Markup:
    """Return a text for the value of an input, escaped for HTML. The form sends it back, so it is not changed."""
    return escape(text or "")


FILTERS = (
    *(milliseconds, iso, day_and_time, distance, duration, length_of, seconds, number, at_least),
    *(json_text, short, short_json, input_value, input_time, why_rejected, why_failed, why_skipped),
    *(describe, local_time),
)
"""The functions that templates use."""
