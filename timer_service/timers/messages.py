"""The wire shape of the timers' commands and events."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from timer_service.core.data import check_fits
from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, TenantPayload

Data = Annotated[
    Any, AfterValidator(check_fits), Field(description="Any JSON, at most 64 KiB; handed back in the event.")
]


class TimerPayload(TenantPayload):
    """A command on one timer."""

    service_call_id: Identifier


class ScheduleTimer(TimerPayload):
    """Publish a `DueTimeReached` at `dueAt`, with `data`. Replaces what was scheduled for the service call before."""

    type: ClassVar[str] = "ScheduleTimer"

    due_at: Instant
    data: Data = None


class CancelTimer(TimerPayload):
    """Do not fire the timer, if it has not fired yet. An older ScheduleTimer that is delivered later is ignored too."""

    type: ClassVar[str] = "CancelTimer"


class RetryTimer(TimerPayload):
    """Publish the event of a Failed timer at once. All attempts are available again."""

    type: ClassVar[str] = "RetryTimer"


class DueTimeReached(TenantPayload):
    """The due time of a timer has come. However often it is sent, the envelope id is the same."""

    type: ClassVar[str] = "DueTimeReached"

    service_call_id: Identifier
    due_at: Instant
    reached_at: Instant
    data: Data = None
