"""Timers as text and as JSON. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from timer_service.cli.output.table import Table
from timer_service.cli.output.text import field_lines, format_distance, format_time, one_line
from timer_service.client import State, Timer
from timer_service.core.values.instant import format_instant, parse_instant

_HEAD = ("CALL", "STATE", "DUE", "", "ATTEMPT", "LAST ERROR")
_COLOURS: Mapping[str, str] = {
    State.REACHED: "green",
    State.EXPIRED: "yellow",
    State.CANCELLED: "yellow",
    State.FAILED: "red",
}


def timer_details(timer: Timer, now: datetime) -> Iterator[str]:
    """Return a line for each field of a timer."""
    yield one_line(f"{timer.tenant}/{timer.call}")
    values = {name: getattr(timer, name) for name in Timer.model_fields if name not in {"tenant", "call"}}
    texts = {name.replace("_", " "): None if value is None else _text(name, value) for name, value in values.items()}
    texts["due at"] = f"{texts['due at']} ({format_distance(timer.due_at, now)})"
    yield from field_lines(texts)


def _text(name: str, value: Any) -> str:
    if isinstance(value, datetime):
        return format_time(value, milliseconds=True)
    return value if isinstance(value, str) and name != "data" else json.dumps(value)


def timer_table(timers: Sequence[Timer], now: datetime, width: int | None) -> Iterator[str]:
    """Return timers as the lines of a table."""
    rows = [
        (
            timer.call,
            timer.state,
            format_time(timer.due_at),
            format_distance(timer.due_at, now),
            str(timer.attempt),
            timer.last_error or "",
        )
        for timer in timers
    ]
    return Table(_HEAD, rows, width, id_column=0, status_column=1, colours=_COLOURS).lines()


def timer_event_line(event: Mapping[str, Any]) -> str:
    """Return a DueTimeReached, TimerExpired or TimersCancelled event as a line."""
    payload = event["payload"]
    if event["type"] == "TimersCancelled":
        at = format_instant(event["timestampMs"])
        return one_line(f"{at}  {payload['tenantId']}/{payload['prefix']}*  cancelled: {payload['count']}")
    at = payload["reachedAt" if event["type"] == "DueTimeReached" else "expiredAt"]
    late = parse_instant(at) - parse_instant(payload["dueAt"])
    how = "" if event["type"] == "DueTimeReached" else "expired, "
    data = f"  {json.dumps(payload['data'])}" if "data" in payload else ""
    name = f"{payload['tenantId']}/{payload['serviceCallId']}"
    return one_line(f"{at}  {name}  {how}due {payload['dueAt']} (+{late} ms){data}")
