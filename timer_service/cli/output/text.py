"""Parts of the text that commands print for people."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import typer

from timer_service.core.values.visible import escape_hidden

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_LABEL_WIDTH = 11


def style(text: str, *, colour: str | None = None, bold: bool = False) -> str:
    """Return text with terminal codes, unless NO_COLOR is set. `typer.echo` removes the codes for files and pipes."""
    if os.environ.get("NO_COLOR") or not (colour or bold):
        return text
    return typer.style(text, fg=colour, bold=bold or None)


def format_time(at: datetime, *, milliseconds: bool = False) -> str:
    """Return an instant as ISO 8601 in UTC."""
    timespec = "milliseconds" if milliseconds else "seconds"
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def format_distance(at: datetime, now: datetime) -> str:
    """Return how far an instant is from now in its two largest units, rounded down, such as `in 2 h 59 min`."""
    numbers = _split(abs(at - now))
    largest = next((place for place, (number, _) in enumerate(numbers) if number), None)
    if largest is None:
        return "now"
    shown = numbers[largest : largest + 2]
    text = " ".join(f"{number} {unit}" for number, unit in shown if number and (unit != "ms" or len(shown) == 1))
    return f"in {text}" if at > now else f"{text} ago"


def format_duration(duration: timedelta) -> str:
    """Return a duration in its units, such as `1 h 30 min`."""
    return " ".join(f"{number} {unit}" for number, unit in _split(duration) if number) or "0 s"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 message` or `2 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _split(duration: timedelta) -> list[tuple[int, str]]:
    """Return the number of each unit, the largest unit first."""
    milliseconds = duration // timedelta(milliseconds=1)
    numbers = []
    for unit, length in _UNITS:
        number, milliseconds = divmod(milliseconds, length)
        numbers.append((number, unit))
    return numbers


def one_line(text: str) -> str:
    """Return text with every character escaped that would act on the terminal or is invisible, such as a line break.

    Line breaks, terminal codes and marks of the writing direction could make a line look like another one.
    """
    return escape_hidden(text)


def field_lines(fields: Mapping[str, str | None]) -> Iterator[str]:
    """Return a line for each field that has a value, with the values aligned, and safe to print."""
    shown = {name: one_line(value) for name, value in fields.items() if value is not None}
    width = max(_LABEL_WIDTH, *map(len, shown))
    for name, value in shown.items():
        yield f"  {name:<{width}}  {value}"


def format_size(size: int) -> str:
    """Return a number of bytes in MiB, such as `1.5 MiB`."""
    return f"{size / 2**20:,.1f} MiB"
