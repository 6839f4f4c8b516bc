"""What users call from Python: schedule, cancel, ask and watch, over the broker only (docs/client.md)."""

from timer_service.client.errors import CommandError, NoAnswerError, QueryError, TimerServiceError
from timer_service.client.events import BuriedEvent
from timer_service.client.run_views import Run, RunGraph, RunJob, RunStatus
from timer_service.client.timer_client import TimerClient
from timer_service.client.views import Counts, NewTimer, Outcome, Signal, SignalStatus, State, Timer

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
