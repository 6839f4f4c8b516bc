"""Dead letters as text. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from timer_service.cli.output.table import Table
from timer_service.cli.output.text import field_lines, format_count, format_time, one_line
from timer_service.client import DeadLetter

_HEAD = ("SEQUENCE", "CODE", "STORED", "COMMAND", "REASON")
_COLOURS = {"INTERNAL": "red"}


def letter_table(letters: Sequence[Mapping[str, Any]], width: int | None) -> Iterator[str]:
    """Return dead letters as the lines of a table."""
    rows = [
        (
            str(each["sequence"]),
            each["code"],
            format_time(datetime.fromisoformat(each["storedAt"])),
            f"{each['tenantId']}/{each['message']}",
            each["reason"],
        )
        for each in letters
    ]
    return Table(_HEAD, rows, width, id_column=3, status_column=1, colours=_COLOURS).lines()


def letter_details(letter: DeadLetter) -> Iterator[str]:
    """Return a dead letter as lines: its fields, its headers, and the command."""
    size = format_count(letter.size, "byte")
    yield one_line(f"{letter.tenant}/{letter.sequence}")
    yield from field_lines(
        {
            "code": letter.code,
            "reason": letter.reason,
            "stored at": format_time(letter.stored_at, milliseconds=True),
            "message": letter.message,
            "command": f"message {letter.source_sequence} of the stream of commands, {size}",
        }
    )
    for name, value in letter.headers.items():
        yield one_line(f"  {name}: {value}")
    yield one_line(letter.body or "")
