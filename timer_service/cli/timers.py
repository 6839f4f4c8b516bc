"""`timer-service timers`. These commands use the broker only, never the database."""

from typing import Any

import typer

from timer_service.cli import parameters, timer_files
from timer_service.cli.many import retry_command
from timer_service.cli.output import format_distance, format_time, print_value
from timer_service.cli.resources import Outcomes, Resource, Rows, print_counts
from timer_service.client import Outcome, Timer, TimerClient, TimerState

app = typer.Typer(help="Schedule, cancel and look up timers, and watch them fire.", no_args_is_help=True)
app.add_typer(timer_files.app)

NAME = parameters.identifier("TIMER", "The id of the timer.")
LIST = Rows(
    query="list-timers",
    field="timers",
    view=Timer,
    head=("TIMER", "STATE", "DUE", "", "ATTEMPT", "LAST ERROR"),
    row=lambda timer, now: (
        timer.timer_id,
        timer.state,
        format_time(timer.due_at),
        format_distance(timer.due_at, now),
        str(timer.attempt),
        timer.last_error or "",
    ),
    colours={"Reached": "green", "Expired": "yellow", "Cancelled": "yellow", "Failed": "red"},
)
TIMERS = Resource(
    app,
    lambda client: client.timers,
    Outcomes(
        lambda outcome: f"{outcome.timer.state}, due {format_time(outcome.timer.due_at)}" if outcome.timer else "",
        {"scheduled", "rescheduled", "updated", "cancelled", "cancelling", "unchanged"},
        {
            "cancelling": "an event TimersCancelled follows",
            "unchanged": "already in that state",
            "not_found": "there is no such timer",
            "already_reached": "it has fired",
            "already_expired": "it has expired",
            "ignored_reached": "it has fired and cannot be moved",
        },
    ),
)


def print_timer(timer: Timer) -> None:
    """Print a line for each field of a timer."""
    print_value(timer, f"{timer.tenant}/{timer.timer_id}", leave_out=["timer_id"])


def _check_times(*, due_at: object, due_in: object, expires_at: object, late_by: object, **_: object) -> None:
    if (due_at is None) == (due_in is None):
        raise typer.BadParameter("Give either --at or --in.")
    if expires_at is not None and (late_by is not None or due_at is None):
        raise typer.BadParameter("Give --expires-at with --at and without --late-by.")


def _check_timers(*, timer_id: str | None, prefix: str | None, **_: object) -> None:
    if (timer_id is None) == (prefix is None):
        raise typer.BadParameter("Give either TIMER or --prefix.")


async def _cancel(client: TimerClient, **given: Any) -> Outcome:
    return await (client.timers.cancel_prefix(**given) if "prefix" in given else client.timers.cancel(**given))


TIMERS.command(
    "schedule",
    "Schedule a timer, or change its due time, topic and data.",
    {
        "timer_id": NAME,
        "due_at": parameters.instant("Due time: ISO 8601 with an offset.", "--at"),
        "due_in": parameters.duration(f"Due after: {parameters.DURATION_FORMS}.", "--in"),
        "expires_at": parameters.instant("If it fires then or later, it expires (needs --at)."),
        "late_by": parameters.duration("If it fires that long after it is due, it expires."),
        "topic": parameters.topic("The last token of the event's subject. Default: no topic."),
        "data": parameters.json_option("JSON that the event returns. Default: no data."),
    },
    check=_check_times,
)
TIMERS.command(
    "cancel",
    "Cancel a timer that has not fired, or all timers whose id begins with a prefix.",
    {
        "timer_id": parameters.identifier("TIMER", "The id of the timer.", str | None),
        "prefix": parameters.identifier_option("PREFIX", "Cancel all timers whose id begins so."),
    },
    call=_cancel,
    check=_check_timers,
)
retry_command(
    TIMERS,
    "Fire failed timers now.",
    "timer",
    "timerId",
    lambda client, tenant: (each.timer_id async for each in client.timers.list(tenant, state="Failed")),
    without_effect=["not_found", "already_reached"],
)
TIMERS.get("Show one timer.", print_timer, {"timer_id": NAME})
TIMERS.list(
    LIST,
    "List timers: Scheduled ones, the next one first, and then the others, the latest due time first.",
    {
        "state": parameters.choice(TimerState, "Only timers in this state."),
        "topic": parameters.topic("Only timers with this topic."),
        "dueBefore": parameters.instant("Only timers due before: ISO 8601 with an offset.", "--due-before"),
        "dueAfter": parameters.instant("Only timers due then or later: ISO 8601 with an offset.", "--due-after"),
    },
)
TIMERS.get("Count timers by state.", print_counts, name="count")
TIMERS.watch("Print the events of timers that are published from now on: fired, expired, and cancelled by prefix.")
