"""Texts of the page: times, numbers, and values of users."""

import json
import re
from typing import Any

from markupsafe import Markup, escape

from timer_service.core.values.duration import parse_duration
from timer_service.core.values.instant import format_instant, parse_instant
from timer_service.visible import escape_character, escape_hidden

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_SHOWN_UNITS = 2
_SMALL = 10
_SHORT = 160
_UNKNOWN = "\N{EN DASH}"
_ACCENTS = r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_PILED = re.compile(f"(?<={_ACCENTS}{{3}}){_ACCENTS}+")
"""The accents on a letter after the third one."""
_EMOJI = r"[\u26d3\u26f9\u2764\U0001f300-\U0001faff]"
"""What may stand before a joiner."""
_JOINED = (
    r"[\u2194\u2195\u2620\u2640\u2642\u2695\u2696\u26a7\u2708\u2744\u2764\u27a1\u2b1b"
    r"\U0001f308\U0001f32b\U0001f33e\U0001f373\U0001f37c\U0001f384\U0001f393\U0001f3a4\U0001f3a8\U0001f3eb\U0001f3ed"
    r"\U0001f466-\U0001f469\U0001f48b\U0001f4a5\U0001f4a8\U0001f4ab\U0001f4bb\U0001f4bc\U0001f525\U0001f527\U0001f52c"
    r"\U0001f5e8\U0001f680\U0001f692\U0001f7e9\U0001f7eb\U0001f91d\U0001f9af-\U0001f9b3\U0001f9ba\U0001f9bc\U0001f9bd"
    r"\U0001f9d1\U0001f9d2\U0001fa79\U0001faf2]"
)
"""What stands behind a joiner in the emoji of Unicode 16: such as a heart, a laptop, or a sign for a woman."""
_JOINER = re.compile(f"(?:(?<={_EMOJI})|(?<={_EMOJI}\ufe0f))\u200d(?={_JOINED})")
"""A joiner of two emoji, which are shown as one."""


def visible(value: Any) -> Any:
    """Return a value with each character escaped that is invisible or acts on others, such as a change of direction.

    Such characters could make one id look like another, and a pile of accents covers the lines above it. The joiner of
    two emoji that are shown as one stays as it is, and so does markup.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or (value.isascii() and value.isprintable()):
        return value
    shown = escape_hidden(value, {found.start() for found in _JOINER.finditer(value)})
    return _PILED.sub(lambda found: "".join(map(escape_character, found[0])), shown)


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


def distance(value: str | int, now: int) -> str:
    """Return how far an instant is from now, such as `in 2 h 59 min`, rounded down."""
    at = milliseconds(value)
    text = duration(abs(at - now))
    return "now" if not text else f"in {text}" if at > now else f"{text} ago"


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


def json_text(value: Any) -> Markup:
    """Return a value as indented JSON, escaped for HTML. Its line breaks stay."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return Markup("\n").join(escape(visible(line)) for line in text.split("\n"))


def short_json(value: Any) -> str:
    """Return the beginning of a value as JSON on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}\N{HORIZONTAL ELLIPSIS}"


def input_value(text: str | None) -> Markup:
    """Return a text for the value of an input, escaped for HTML. The form sends it back, so it is not changed."""
    return escape(text or "")


FILTERS = (
    *(milliseconds, iso, day_and_time, distance, duration, length_of, seconds, number, at_least),
    *(json_text, short_json, input_value, input_time),
)
"""The functions that templates use."""
