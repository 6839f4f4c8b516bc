"""The Python client of timers, signals, schedules, runs and workflows (see docs/client.md)."""

from typing import TYPE_CHECKING

from timer_service.client.errors import (
    AlreadyHandled,
    CommandError,
    NoAnswerError,
    PermanentError,
    QueryError,
    RetryLater,
    TimerServiceError,
    WorkflowEndedError,
)
from timer_service.client.events import (
    CommandRejected,
    DueTimeReached,
    Event,
    JobReady,
    JobSkipped,
    RunCompleted,
    RunRejected,
    RunStuck,
    ScheduleBackfilled,
    ScheduleEnded,
    ScheduleFired,
    ScheduleSkipped,
    TimerExpired,
    TimersCancelled,
    WorkflowBlocked,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkSignalFailed,
    WorkSignalFired,
)
from timer_service.client.lookup import Broker, find_broker
from timer_service.client.models import (
    Backfill,
    BuriedEvent,
    CalendarInterval,
    CatchUp,
    Counts,
    DeadLetter,
    ExceededLimit,
    Firing,
    NewTimer,
    Outcome,
    ParkedEvent,
    Run,
    RunGraph,
    RunJob,
    Schedule,
    ScheduleStart,
    Signal,
    Task,
    Timer,
)
from timer_service.client.names import (
    CalendarUnit,
    CatchUpPolicy,
    EffectStatus,
    FiringStatus,
    JobStatus,
    OutcomeName,
    ReportedStatus,
    RunStatus,
    ScheduleStatus,
    SignalStatus,
    TimerState,
    WhenBusy,
    WorkflowStatus,
)
from timer_service.client.receive.app import TimerApp
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Filter
from timer_service.client.receive.seen import MemorySeen, SeenStore
from timer_service.client.timer_client import TimerClient
from timer_service.client.workflow_models import (
    WorkerInfo,
    Workflow,
    WorkflowCounts,
    WorkflowDetail,
    WorkflowEffect,
)
from timer_service.client.workflow_start import WorkflowStart
from timer_service.client.workflow_type import WorkflowType

if TYPE_CHECKING:
    from timer_service.client.receive.stored_seen import PostgresSeen, SqliteSeen
else:

    def __getattr__(name: str) -> object:
        """Import the stores in a database when a program uses them: sqlite3 takes long to import."""
        if name in {"PostgresSeen", "SqliteSeen"}:
            from timer_service.client.receive import stored_seen  # noqa: PLC0415

            return getattr(stored_seen, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AlreadyHandled",
    "Backfill",
    "Broker",
    "BuriedEvent",
    "CalendarInterval",
    "CalendarUnit",
    "CatchUp",
    "CatchUpPolicy",
    "CommandError",
    "CommandRejected",
    "Counts",
    "DeadLetter",
    "Delivery",
    "DueTimeReached",
    "EffectStatus",
    "Event",
    "ExceededLimit",
    "Filter",
    "Firing",
    "FiringStatus",
    "JobReady",
    "JobSkipped",
    "JobStatus",
    "MemorySeen",
    "NewTimer",
    "NoAnswerError",
    "Outcome",
    "OutcomeName",
    "ParkedEvent",
    "PermanentError",
    "PostgresSeen",
    "QueryError",
    "ReportedStatus",
    "RetryLater",
    "Run",
    "RunCompleted",
    "RunGraph",
    "RunJob",
    "RunRejected",
    "RunStatus",
    "RunStuck",
    "Schedule",
    "ScheduleBackfilled",
    "ScheduleEnded",
    "ScheduleFired",
    "ScheduleSkipped",
    "ScheduleStart",
    "ScheduleStatus",
    "SeenStore",
    "Signal",
    "SignalStatus",
    "SqliteSeen",
    "Task",
    "Timer",
    "TimerApp",
    "TimerClient",
    "TimerExpired",
    "TimerServiceError",
    "TimerState",
    "TimersCancelled",
    "WhenBusy",
    "WorkSignalFailed",
    "WorkSignalFired",
    "WorkerInfo",
    "Workflow",
    "WorkflowBlocked",
    "WorkflowCancelled",
    "WorkflowCompleted",
    "WorkflowCounts",
    "WorkflowDetail",
    "WorkflowEffect",
    "WorkflowEndedError",
    "WorkflowFailed",
    "WorkflowStart",
    "WorkflowStatus",
    "WorkflowType",
    "find_broker",
]
