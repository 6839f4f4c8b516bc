"""The text that commands print for people: instants, durations, fields and tables. It is safe for a terminal."""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import dropwhile
from typing import Any

import typer
from rich.cells import cell_len

from timer_service.client.view import View
from timer_service.visible import escape_hidden

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_LABEL_WIDTH = 11
_JSON_FIELDS = {"data", "input", "result"}
_WIDEST_COLUMN = 40


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
    numbers = [*dropwhile(lambda each: each[0] == 0, _split(abs(at - now)))]
    if not numbers:
        return "now"
    # Milliseconds are shown only below a second.
    shown = [(number, unit) for number, unit in numbers[:2] if number and (unit != "ms" or len(numbers) == 1)]
    text = " ".join(f"{number} {unit}" for number, unit in shown)
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
    """Return text with every character escaped that would act on the terminal or is invisible, such as a line break."""
    return escape_hidden(text)


def fields_of(
    value: View,
    now: datetime,
    *,
    leave_out: Collection[str] = (),
    time_text: Callable[[datetime], str] = lambda at: format_time(at, milliseconds=True),
) -> dict[str, str]:
    """Return the fields of a value that are set, as text, by their names in words. Items of a list have numbers."""
    found: dict[str, str] = {}
    for field in (each.name for each in fields(value)):  # type: ignore[arg-type]  # each `View` is a dataclass
        if field in {"tenant", *leave_out}:
            continue
        each, label = getattr(value, field), field.replace("_", " ")
        if isinstance(each, list | tuple) and field not in _JSON_FIELDS:
            texts = [_field_text(field, item, now, time_text) for item in each]
            found |= {f"{label} {number}": text for number, text in enumerate(texts, 1)}
        elif each is not None:
            found[label] = _field_text(field, each, now, time_text)
    return found


def _field_text(name: str, value: Any, now: datetime, time_text: Callable[[datetime], str]) -> str:
    """Return a value as text: the user's JSON as JSON, a value with fields as their names and texts."""
    if name in _JSON_FIELDS:
        return json.dumps(value)
    match value:
        case datetime():
            return f"{time_text(value)} ({format_distance(value, now)})"
        case timedelta():
            return format_duration(value)
        case View():
            return ", ".join(" ".join(pair) for pair in fields_of(value, now, time_text=time_text).items())
        case str():
            return value
    return json.dumps(value)


def print_value(
    value: View,
    title: str,
    texts: Mapping[str, str | None] = {},
    *,
    leave_out: Collection[str] = (),
    time_text: Callable[[datetime], str] = lambda at: format_time(at, milliseconds=True),
) -> None:
    """Print a title, the `texts` by their names, and a line for each other field of a value."""
    typer.echo(one_line(title))
    print_fields({**texts, **fields_of(value, datetime.now(UTC), leave_out=leave_out, time_text=time_text)})


def print_fields(fields: Mapping[str, str | None]) -> None:
    """Print a line for each field that has a value, with the values aligned."""
    shown = {name: one_line(value) for name, value in fields.items() if value}
    width = max([_LABEL_WIDTH, *map(len, shown)])
    for name, value in shown.items():
        typer.echo(f"  {name:<{width}}  {value}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], colours: Mapping[str, str]) -> None:
    """Print rows below a head, a line each. Nothing is cut: a cell that is too long for its column moves its line.

    `colours` has the colour of a text, for example of a status.
    """
    lines = [head, *([one_line(cell) for cell in row] for row in rows)]
    widths = [min(max(map(cell_len, column)), _WIDEST_COLUMN) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = (
            style(cell, colour=colours.get(cell), bold=number == 0) + " " * (width - cell_len(cell))
            for cell, width in zip(line, widths, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())
