"""`timer-service signals`. These commands use the broker only, never the database."""

import json
from typing import Annotated, Any

import typer

from timer_service.cli import parameters
from timer_service.cli.output import format_time, print_value
from timer_service.cli.resources import Outcomes, Resource, Rows
from timer_service.client import Firing, Signal, SignalStatus, Task

app = typer.Typer(
    help="Reminders that fire when a work item changes its status, or at an instant.", no_args_is_help=True
)

NAME = parameters.identifier("SIGNAL", "The id of the signal.")
ITEM = parameters.identifier("ITEM", "The id of the work item.")


def trigger_text(signal: Signal) -> str:
    """Return the statuses or the instant that a signal waits for."""
    if signal.trigger_error is not None:
        return f"nothing: {signal.trigger_error}"
    match signal.trigger_spec:
        case {"kind": "work_item.status.transition", "to": [*statuses]}:
            return " or ".join(map(str, statuses))
        case {"kind": "time.at", "at": str(at)}:
            return at
    return json.dumps(signal.trigger_spec)


def _with_item(item: str | None, text: str, error: str | None, remark: str | None) -> str:
    """Return a text with the work item before it, and the error behind it, or else a remark."""
    suffix = f"error: {error}" if error else remark
    return (f"{item}: " if item else "") + text + (f" ({suffix})" if suffix else "")


LIST = Rows(
    query="list-signals",
    field="signals",
    view=Signal,
    head=("SIGNAL", "STATUS", "LAST FIRED", "WAITS FOR (NOTE)"),
    row=lambda signal, _: (
        signal.signal_id,
        signal.status,
        "" if signal.last_fired_at is None else format_time(signal.last_fired_at),
        _with_item(signal.work_item_id, trigger_text(signal), signal.last_error, signal.note),
    ),
    colours={"active": "green", "fired": "yellow", "paused": "red"},
)
FIRINGS = Rows(
    query="list-firings",
    field="firings",
    view=Firing,
    head=("FIRING", "STATUS", "CREATED", "CAUSE (TASK OR ERROR)"),
    row=lambda firing, _: (
        firing.firing_id,
        firing.status,
        format_time(firing.created_at),
        _with_item(firing.work_item_id, firing.dedupe_key, firing.last_error, firing.task_id),
    ),
    colours={"enqueued": "green", "failed": "red"},
)
TASKS = Rows(
    query="list-tasks",
    field="tasks",
    view=Task,
    head=("TASK", "CREATED", "SIGNAL"),
    row=lambda task, _: (task.task_id, format_time(task.created_at), task.signal_id),
)
SIGNALS = Resource(
    app,
    lambda client: client.signals,
    Outcomes(
        lambda outcome: f"{outcome.signal.status}, waits for {trigger_text(outcome.signal)}" if outcome.signal else "",
        {"created", "transitioned", "paused", "activated", "cancelled", "resolved", "unchanged"},
        {
            "unchanged": "already in that state",
            "exists": "another signal has this name; it is not changed",
            "created_invalid": "the service cannot read its trigger, so it never fires",
            "not_found": "there is no such signal",
            "already_fired": "it has fired",
            "already_ended": "it was cancelled or resolved",
        },
    ),
)


def print_signal(signal: Signal) -> None:
    """Print a line for each field of a signal."""
    spec = ["signal_id", "trigger_kind", "trigger_spec", "trigger_error"]
    print_value(signal, f"{signal.tenant}/{signal.signal_id}", {"waits for": trigger_text(signal)}, leave_out=spec)


def _check_trigger(*, work_item_id: str | None, on: list[str] | None, at: Any, **_: object) -> None:
    if on and work_item_id is None:
        raise typer.BadParameter("--on needs --item: the work item whose status changes.")
    if bool(on) == (at is not None):
        raise typer.BadParameter("Give either --on (with --item) or --at.")


SIGNALS.command(
    "create",
    "Create a signal that fires when a work item changes its status, or at an instant.",
    {
        "signal_id": NAME,
        "work_item_id": parameters.identifier_option("ITEM", "The work item that the signal waits for.", "--item"),
        "on": Annotated[
            list[str] | None,
            typer.Option(metavar="STATUS", help="Fire when the work item changes to this status. May be repeated."),
        ],
        "at": parameters.instant("Fire at this instant instead: ISO 8601 with an offset."),
        "note": parameters.option("TEXT", "What the signal is for."),
    },
    check=_check_trigger,
)
SIGNALS.command(
    "transition",
    "Report that a work item has a new status.",
    {"work_item_id": ITEM, "to": parameters.argument("STATUS", "The new status of the work item.")},
)
for name, text in {
    "pause": "Pause a signal: it does not fire until it is activated.",
    "activate": "Activate a paused or fired signal: it fires on what happens from now on.",
    "cancel": "Cancel a signal: it never fires again.",
    "resolve": "Resolve a signal: mark its purpose as done.",
}.items():
    SIGNALS.command(name, text, {"signal_id": NAME})
SIGNALS.get("Show one signal.", print_signal, {"signal_id": NAME})
SIGNALS.list(
    LIST,
    "List signals by status and id: those that have ended are the last.",
    {
        "status": parameters.choice(SignalStatus, "Only signals in this status."),
        "workItemId": parameters.identifier_option("ITEM", "Only signals of this work item.", "--item"),
    },
)
SIGNALS.list(
    FIRINGS,
    "List the firings of a signal, oldest first: what made its trigger true, and what became of it.",
    {"signalId": NAME},
    name="firings",
)
SIGNALS.list(
    TASKS,
    "List the follow-up tasks of a work item, oldest first: each signal that fired for it added one.",
    {"workItemId": ITEM},
    name="tasks",
)
SIGNALS.watch("Print the events of signals that are published from now on: fired, and firings that were given up.")
