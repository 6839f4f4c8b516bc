"""The Python client: commands, queries and events of timers, signals, schedules and runs (see docs/client.md)."""

from timer_service.client.errors import CommandError, NoAnswerError, QueryError, TimerServiceError
from timer_service.client.models import (
    BuriedEvent,
    CatchUp,
    CatchUpPolicy,
    Counts,
    NewTimer,
    Outcome,
    Run,
    RunGraph,
    RunJob,
    RunStatus,
    Schedule,
    ScheduleStatus,
    Signal,
    SignalStatus,
    State,
    Timer,
)
from timer_service.client.timer_client import TimerClient

__all__ = [
    "BuriedEvent",
    "CatchUp",
    "CatchUpPolicy",
    "CommandError",
    "Counts",
    "NewTimer",
    "NoAnswerError",
    "Outcome",
    "QueryError",
    "Run",
    "RunGraph",
    "RunJob",
    "RunStatus",
    "Schedule",
    "ScheduleStatus",
    "Signal",
    "SignalStatus",
    "State",
    "Timer",
    "TimerClient",
    "TimerServiceError",
]
