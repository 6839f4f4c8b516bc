"""Work signals as text and as JSON. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from timer_service.cli.output.table import Table
from timer_service.cli.output.text import field_lines, format_time, one_line
from timer_service.client import Firing, Signal, SignalStatus, Task

_HEAD = ("SIGNAL", "STATUS", "LAST FIRED", "WAITS FOR (NOTE)")
_COLOURS: Mapping[str, str] = {SignalStatus.ACTIVE: "green", SignalStatus.FIRED: "yellow", SignalStatus.PAUSED: "red"}
_FIRING_HEAD = ("FIRING", "STATUS", "CREATED", "CAUSE (TASK OR ERROR)")
_FIRING_COLOURS = {"enqueued": "green", "failed": "red"}
_TASK_HEAD = ("TASK", "CREATED", "SIGNAL")


def signal_details(signal: Signal) -> Iterator[str]:
    """Return a line for each field of a signal."""
    yield one_line(f"{signal.tenant}/{signal.name}")
    yield from field_lines(
        {
            "status": signal.status,
            "item": signal.item,
            "waits for": trigger_text(signal),
            "created": format_time(signal.created_at, milliseconds=True),
            "last fired": None
            if signal.last_fired_at is None
            else format_time(signal.last_fired_at, milliseconds=True),
            "note": signal.note,
            "last error": signal.last_error,
        }
    )


def signal_table(signals: Sequence[Signal], width: int | None) -> Iterator[str]:
    """Return signals as the lines of a table."""
    rows = [_row(signal) for signal in signals]
    return Table(_HEAD, rows, width, id_column=0, status_column=1, colours=_COLOURS).lines()


def firing_table(firings: Sequence[Firing], width: int | None) -> Iterator[str]:
    """Return firings as the lines of a table."""
    rows = [_firing_row(firing) for firing in firings]
    return Table(_FIRING_HEAD, rows, width, id_column=0, status_column=1, colours=_FIRING_COLOURS).lines()


def task_table(tasks: Sequence[Task], width: int | None) -> Iterator[str]:
    """Return follow-up tasks as the lines of a table."""
    rows = [(task.task_id, format_time(task.created_at), task.signal) for task in tasks]
    return Table(_TASK_HEAD, rows, width, id_column=0, status_column=1, colours={}).lines()


def trigger_text(signal: Signal) -> str:
    """Return the statuses or the instant that a signal waits for."""
    if signal.trigger_error is not None:
        return f"nothing: {signal.trigger_error}"
    match signal.trigger_spec:
        case {"kind": "work_item.status.transition", "to": [*statuses]}:
            return " or ".join(map(str, statuses))
        case {"kind": "time.at", "at": str(at)}:
            return _time_text(at)
    return json.dumps(signal.trigger_spec)


def signal_event_line(event: Mapping[str, Any]) -> str:
    """Return a `work.signal.fired` or `work.signal.failed` event as a line."""
    payload = event["payload"]
    name = f"{payload['tenantId']}/{payload['signalId']}"
    item = f"  {payload['workItemId']}" if "workItemId" in payload else ""
    if event["type"] == "work.signal.failed":
        return one_line(f"{payload['failedAt']}  {name}{item}  failed: {payload['error']}")
    task = f"  task {payload['taskId']}" if "taskId" in payload else ""
    return one_line(f"{payload['firedAt']}  {name}{item}  fired{task}")


def _row(signal: Signal) -> tuple[str, ...]:
    fired = "" if signal.last_fired_at is None else format_time(signal.last_fired_at)
    item = "" if signal.item is None else f"{signal.item}: "
    remark = f"error: {signal.last_error}" if signal.last_error else signal.note
    note = f" ({remark})" if remark else ""
    return signal.name, signal.status, fired, f"{item}{trigger_text(signal)}{note}"


def _firing_row(firing: Firing) -> tuple[str, ...]:
    item = "" if firing.item is None else f"{firing.item}: "
    remark = f"error: {firing.last_error}" if firing.last_error else firing.task_id
    note = f" ({remark})" if remark else ""
    return firing.firing_id, firing.status, format_time(firing.created_at), f"{item}{firing.dedupe_key}{note}"


def _time_text(at: str) -> str:
    try:
        return format_time(datetime.fromisoformat(at))
    except (ValueError, OverflowError):
        return at
