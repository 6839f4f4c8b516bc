"""The wire shape of the timers' commands and events."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from timer_service.core.data import check_fits
from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, TenantPayload

Data = Annotated[
    Any, AfterValidator(check_fits), Field(description="Any JSON, at most 64 KiB; handed back in the event.")
]


class ScheduleTimer(TenantPayload):
    """Fire a `DueTimeReached` at `dueAt`; an earlier schedule of the same service call is replaced."""

    type: ClassVar[str] = "ScheduleTimer"

    service_call_id: Identifier
    due_at: Instant
    data: Data = None


class CancelTimer(TenantPayload):
    """Do not fire the timer, if it has not fired yet. Also beats an older ScheduleTimer that is delivered later."""

    type: ClassVar[str] = "CancelTimer"

    service_call_id: Identifier


class RetryTimer(TenantPayload):
    """Put a Failed timer back, with all its attempts before it."""

    type: ClassVar[str] = "RetryTimer"

    service_call_id: Identifier


class DueTimeReached(TenantPayload):
    """The due time of a timer has come. The same fire always has the same envelope id."""

    type: ClassVar[str] = "DueTimeReached"

    service_call_id: Identifier
    due_at: Instant
    reached_at: Instant
    data: Data = None
