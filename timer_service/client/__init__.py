"""The Python client: schedule, cancel, query and watch timers, signals and runs over NATS (see docs/client.md)."""

from timer_service.client.errors import CommandError, NoAnswerError, QueryError, TimerServiceError
from timer_service.client.models import (
    BuriedEvent,
    Counts,
    NewTimer,
    Outcome,
    Run,
    RunGraph,
    RunJob,
    RunStatus,
    Signal,
    SignalStatus,
    State,
    Timer,
)
from timer_service.client.timer_client import TimerClient

__all__ = [
    "BuriedEvent",
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
    "Signal",
    "SignalStatus",
    "State",
    "Timer",
    "TimerClient",
    "TimerServiceError",
]
