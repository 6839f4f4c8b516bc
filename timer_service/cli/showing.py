"""Timers for a person's eye and for machines. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size

from timer_service.client import Outcome, State, Timer

_HEAD = ("CALL", "STATE", "DUE", "", "ATTEMPT", "LAST ERROR")
_GAP = "  "
_SHORTEST_CALL = 12
_SHORTEST_ERROR = 24
_COLOURS = {State.REACHED: "green", State.CANCELLED: "yellow", State.FAILED: "red"}
_WORDS = {
    "unchanged": "already in that state",
    "not_found": "there is no such timer",
    "already_reached": "it has fired",
    "ignored_reached": "it has fired, and can't be moved any more",
    "ignored_stale": "a newer command has come before",
}


def wire(at: datetime) -> str:
    """Write an instant as on the wire."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def document(timer: Timer) -> dict[str, Any]:
    """Return a timer as on the wire."""
    found = {
        "tenantId": timer.tenant,
        "serviceCallId": timer.call,
        "dueAt": wire(timer.due_at),
        "state": timer.state,
        "registeredAt": wire(timer.registered_at),
        "attempt": timer.attempt,
        "reachedAt": timer.reached_at and wire(timer.reached_at),
        "lastError": timer.last_error,
        "correlationId": timer.correlation_id,
        "data": timer.data,
    }
    return {name: value for name, value in found.items() if value is not None}


def relative(at: datetime, now: datetime) -> str:
    """Write how far an instant is away, in its largest unit."""
    distance = abs(at - now)
    number, unit = next(
        (distance // length, unit)
        for unit, length in (
            ("d", timedelta(days=1)),
            ("h", timedelta(hours=1)),
            ("m", timedelta(minutes=1)),
            ("s", timedelta(seconds=1)),
            ("ms", timedelta(milliseconds=1)),
        )
        if distance >= length or unit == "ms"
    )
    return f"in {number} {unit}" if at > now else f"{number} {unit} ago"


def outcome_line(outcome: Outcome, tenant: str, call: str) -> str:
    """Write how a command ended."""
    timer = outcome.timer
    due = f" ({timer.state}, due {local(timer.due_at)})" if timer else ""
    why = f": {_WORDS[outcome.name]}" if outcome.name in _WORDS else ""
    return f"{outcome.name}: {tenant}/{call}{due}{why}"


def details(timer: Timer, now: datetime) -> Iterator[str]:
    """Write all there is to know of a timer, a line each."""
    yield f"{timer.tenant}/{timer.call}"
    known: Mapping[str, str | None] = {
        "state": timer.state,
        "due": f"{local(timer.due_at, 'milliseconds')} ({relative(timer.due_at, now)})",
        "registered": local(timer.registered_at, "milliseconds"),
        "reached": None if timer.reached_at is None else local(timer.reached_at, "milliseconds"),
        "attempt": str(timer.attempt),
        "last error": timer.last_error and one_line(timer.last_error),
        "correlation": timer.correlation_id,
        "data": None if timer.data is None else json.dumps(timer.data),
    }
    for name, value in known.items():
        if value is not None:
            yield f"  {name:<11}  {value}"


def table(timers: Sequence[Timer], now: datetime, width: int | None) -> Iterator[str]:
    """Write timers as aligned lines.

    None is wider than `width`: calls are cut, and errors stand below their timer where there is no room beside it.
    Without a width nothing is cut.
    """
    rows = [_HEAD, *(_row(timer, now) for timer in timers)]
    *widths, error_width = (max(cell_len(row[column]) for row in rows) for column in range(len(_HEAD)))
    rest = sum(widths[1:]) + len(_GAP) * (len(widths) - 1)
    if width is not None:
        widths[0] = min(widths[0], max(width - rest, _SHORTEST_CALL))
    used = widths[0] + rest + len(_GAP)
    beside = width is None or used + min(error_width, _SHORTEST_ERROR) <= width
    for row, style in zip(rows, [{"bold": True}, *(_style(timer) for timer in timers)], strict=True):
        *cells, error = row
        line = _GAP.join(_cells(cells, widths, style))
        if beside:
            yield f"{line}{_GAP}{cut(error, width and width - used)}".rstrip()
        else:
            yield line
            if error and row is not _HEAD:
                yield f"{_GAP}{cut(error, width and width - len(_GAP))}"


def _row(timer: Timer, now: datetime) -> tuple[str, ...]:
    error = one_line(timer.last_error or "")
    return timer.call, timer.state, local(timer.due_at), relative(timer.due_at, now), str(timer.attempt), error


def _cells(cells: Sequence[str], widths: Sequence[int], style: Mapping[str, Any]) -> Iterator[str]:
    for name, text, width in zip(_HEAD, cells, widths, strict=False):
        cell = text.rjust(width) if name == "ATTEMPT" else set_cell_size(cut(text, width), width)
        yield typer.style(cell, **style) if text in {name, *State} else cell


def _style(timer: Timer) -> Mapping[str, Any]:
    return {"fg": _COLOURS.get(State(timer.state))} if timer.state in list(State) else {}


def cut(text: str, width: int | None) -> str:
    """Shorten text to a width, None for any."""
    if width is None or cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "\N{HORIZONTAL ELLIPSIS}"


def local(at: datetime, timespec: str = "seconds") -> str:
    """Write an instant in this machine's time."""
    return at.astimezone().isoformat(timespec=timespec)


def one_line(text: str) -> str:
    """Keep what a broker wrote from acting on the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
