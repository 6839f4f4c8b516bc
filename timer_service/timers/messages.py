"""Wire models of the commands and events of timers."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from timer_service.core.data import check_fits
from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, TenantPayload

Data = Annotated[
    Any, AfterValidator(check_fits), Field(description="Any JSON of at most 64 KiB. The event carries it unchanged.")
]


class TimerPayload(TenantPayload):
    """The payload of a command on one timer."""

    service_call_id: Identifier


class ScheduleTimer(TimerPayload):
    """Publish a `DueTimeReached` with `data` at `dueAt`. A newer ScheduleTimer for this service call replaces it."""

    type: ClassVar[str] = "ScheduleTimer"

    due_at: Instant
    data: Data = None


class CancelTimer(TimerPayload):
    """Cancel the timer if it has not fired yet. An older ScheduleTimer that is delivered later is ignored."""

    type: ClassVar[str] = "CancelTimer"


class RetryTimer(TimerPayload):
    """Publish the event of a Failed timer now. The count of attempts starts again at 0."""

    type: ClassVar[str] = "RetryTimer"


class DueTimeReached(TenantPayload):
    """The due time of a timer was reached. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "DueTimeReached"

    service_call_id: Identifier
    due_at: Instant
    reached_at: Instant
    data: Data = None
