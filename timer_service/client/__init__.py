"""What users call from Python: schedule, cancel, ask and watch, over the broker only (docs/client.md)."""

from timer_service.client.errors import CommandError, NoAnswerError, QueryError, TimerServiceError
from timer_service.client.timer_client import TimerClient
from timer_service.client.views import Counts, NewTimer, Outcome, Signal, SignalStatus, State, Timer

__all__ = [
    "CommandError",
    "Counts",
    "NewTimer",
    "NoAnswerError",
    "Outcome",
    "QueryError",
    "Signal",
    "SignalStatus",
    "State",
    "Timer",
    "TimerClient",
    "TimerServiceError",
]
