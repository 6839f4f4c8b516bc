"""Work signals for a person's eye and for machines. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size

from timer_service.cli.showing import cut, local, one_line, wire
from timer_service.client import Outcome, Signal, SignalStatus

_HEAD = ("SIGNAL", "STATUS", "ITEM", "WAITS FOR", "LAST FIRED", "NOTE")
_GAP = "  "
_COLOURS = {SignalStatus.ACTIVE: "green", SignalStatus.FIRED: "yellow", SignalStatus.PAUSED: "red"}
_WORDS = {
    "unchanged": "already in that state",
    "exists": "there is another signal of this name, which stays as it is",
    "created_invalid": "its trigger can't be read, so it never fires",
    "recorded": "a newer command has set the item's status since",
    "not_found": "there is no such signal",
    "already_fired": "it has fired",
    "already_ended": "it was cancelled or resolved",
    "ignored_stale": "a newer command has come before",
}


def signal_document(signal: Signal) -> dict[str, Any]:
    """Return a signal as on the wire."""
    found = {
        "tenantId": signal.tenant,
        "signalId": signal.name,
        "status": signal.status,
        "triggerKind": signal.trigger_kind,
        "triggerSpec": signal.trigger_spec,
        "createdAt": wire(signal.created_at),
        "triggerError": signal.trigger_error,
        "workItemId": signal.item,
        "note": signal.note,
        "lastFiredAt": signal.last_fired_at and wire(signal.last_fired_at),
        "lastError": signal.last_error,
    }
    return {name: value for name, value in found.items() if value is not None}


def signal_outcome_line(outcome: Outcome, tenant: str, name: str) -> str:
    """Write how a command ended."""
    status = f" ({outcome.signal.status}, waits for {_trigger(outcome.signal)})" if outcome.signal else ""
    why = f": {_WORDS[outcome.name]}" if outcome.name in _WORDS else ""
    return f"{outcome.name}: {tenant}/{name}{status}{why}"


def signal_details(signal: Signal) -> Iterator[str]:
    """Write all there is to know of a signal, a line each."""
    yield f"{signal.tenant}/{signal.name}"
    known: Mapping[str, str | None] = {
        "status": signal.status,
        "item": signal.item,
        "waits for": _trigger(signal),
        "created": local(signal.created_at, "milliseconds"),
        "last fired": None if signal.last_fired_at is None else local(signal.last_fired_at, "milliseconds"),
        "note": signal.note and one_line(signal.note),
        "last error": signal.last_error and one_line(signal.last_error),
    }
    for name, value in known.items():
        if value is not None:
            yield f"  {name:<11}  {value}"


def signal_table(signals: Sequence[Signal], width: int | None) -> Iterator[str]:
    """Write signals as aligned lines, none wider than `width`: what is too long for that is cut."""
    rows = [_HEAD, *(_row(signal) for signal in signals)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = _GAP.join(set_cell_size(text, size) for text, size in zip(row, widths, strict=True)).rstrip()
        line = cut(cells, width)
        if row is _HEAD:
            yield typer.style(line, bold=True)
        else:
            yield line.replace(f" {row[1]} ", f" {_styled(row[1])} ", 1)


def _styled(status: str) -> str:
    known = status in list(SignalStatus)
    return typer.style(status, fg=_COLOURS.get(SignalStatus(status))) if known else status


def _row(signal: Signal) -> tuple[str, ...]:
    fired = "" if signal.last_fired_at is None else local(signal.last_fired_at)
    note = one_line(signal.last_error or signal.note or "")
    return signal.name, signal.status, signal.item or "", _trigger(signal), fired, note


def _trigger(signal: Signal) -> str:
    if signal.trigger_error is not None:
        return f"nothing: {one_line(signal.trigger_error)}"
    match signal.trigger_spec:
        case {"kind": "work_item.status.transition", "to": [*statuses]}:
            return one_line(" or ".join(map(str, statuses)))
        case {"kind": "time.at", "at": at}:
            return one_line(str(at))
    return one_line(json.dumps(signal.trigger_spec))
