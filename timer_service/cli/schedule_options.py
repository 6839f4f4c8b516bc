"""The arguments and options of `timer-service schedules`."""

from datetime import datetime, timedelta
from typing import Annotated

import typer

from timer_service.cli.parameters import (
    DURATION_FORMS,
    choice,
    duration,
    identifier,
    identifier_option,
    instant,
    json_argument,
    json_text,
    read_distance,
)
from timer_service.client import CatchUpPolicy, ScheduleStatus, WorkflowStart

Name = Annotated[str, identifier("SCHEDULE", "The scheduleId.")]
OnlyName = Annotated[str | None, identifier("SCHEDULE", "Only this scheduleId.")]
Cron = Annotated[str | None, typer.Option(metavar="EXPR", help="A cron expression in quotes: '0 9 * * MON-FRI'.")]
Every = Annotated[timedelta | None, duration(f"The time between slots: {DURATION_FORMS}.", parser=read_distance)]
Zone = Annotated[
    str | None, typer.Option(metavar="ZONE", help="The time zone of --cron, such as Europe/Berlin. Default: UTC.")
]
StartAt = Annotated[datetime | None, instant("No slot is earlier: ISO 8601 with an offset.")]
EndAt = Annotated[datetime | None, instant("Every slot is earlier: ISO 8601 with an offset.")]
MaxCount = Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N slots.")]
Jitter = Annotated[timedelta | None, duration("Fire each slot up to so much later. Spreads many schedules.")]
Policy = Annotated[
    CatchUpPolicy | None,
    choice(
        "After an outage, of the slots that are later than --late-by: fire the newest if all are that late (last, "
        "the default), none (skip) or all."
    ),
]
LateBy = Annotated[timedelta | None, duration("Slots that are at most so late fire. Default: 1m.")]
CatchUpLimit = Annotated[
    int | None, typer.Option(min=1, max=1000, metavar="N", help="Fire at most the newest N late slots. Default: 100.")
]
Data = Annotated[str | None, json_text("JSON that the events return. Default: no data.")]
TriggerData = Annotated[str | None, json_text("JSON instead of the data of the schedule.")]
Start = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Each slot starts a workflow of this type, and publishes no event.")
]
StartInput = Annotated[str | None, json_text("The input of the workflows.", "--input")]
StartQueue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="The queue of their workers. Default: default.")
]
StartDeadline = Annotated[timedelta | None, duration("A workflow fails if it is slower.", "--deadline-in")]
StartKey = Annotated[
    str | None, identifier_option("KEY", "Skip a slot if an open workflow has this key.", "--concurrency-key")
]
FromTime = Annotated[datetime | None, instant("Show slots from then on. Default: from now on.", "--from")]
BackfillFrom = Annotated[datetime, instant("No slot is earlier: ISO 8601 with an offset.", "--from")]
BackfillTo = Annotated[datetime, instant("Every slot is earlier. Slots are never later than now.", "--to")]
BackfillLimit = Annotated[
    int | None, typer.Option(min=1, max=10_000, metavar="N", help="Fire at most the oldest N slots. Default: 1000.")
]
Count = Annotated[int, typer.Option(min=1, max=100, metavar="N", help="How many slots to show.")]
Upcoming = Annotated[int, typer.Option(min=0, max=100, metavar="N", help="How many of the next slots to show.")]
StatusFilter = Annotated[ScheduleStatus | None, choice("Only schedules in this status.", "--status")]


def start_of(
    workflow_type: str | None,
    *,
    start_input: str | None,
    queue: str | None,
    deadline_in: timedelta | None,
    concurrency_key: str | None,
) -> WorkflowStart | None:
    """Return what the slots start; None if they publish events."""
    if workflow_type is None:
        return None
    return WorkflowStart(
        workflow_type=workflow_type,
        **json_argument(start_input),
        queue=queue,
        deadline_in=deadline_in,
        concurrency_key=concurrency_key,
    )
