"""Wire models of the commands and events of timers."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from timer_service.core.data import check_fits
from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, Payload, Tenant, TenantPayload
from timer_service.core.paging import PageCursor, PageLimit


class State(StrEnum):
    """The state of a timer."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


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
    is_operator_action: ClassVar[bool] = True


class DueTimeReached(TenantPayload):
    """The due time of a timer was reached. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "DueTimeReached"

    service_call_id: Identifier
    due_at: Instant
    reached_at: Instant
    data: Data = None


class GetTimer(Payload):
    """Ask for the timer with an id (`serviceCallId`)."""

    service_call_id: Identifier


class ListTimers(Payload):
    """Ask for one page of the timers that are due in [dueAfter, dueBefore), in order of due time."""

    state: State | None = None
    due_before: Instant | None = None
    due_after: Instant | None = None
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class CountTimers(Payload):
    """Ask for the number of timers in each state."""


class TimerView(Payload):
    """A timer in a reply to a command or a query."""

    tenant_id: Tenant
    service_call_id: Identifier
    due_at: Instant
    state: State
    registered_at: Instant
    attempt: int = Field(ge=0, description="The number of attempts to publish the event.")
    reached_at: Instant | None = None
    last_error: str | None = None
    correlation_id: Identifier | None = None
    data: Any = None


class TimerPage(Payload):
    """A page of timers in order of due time. If `cursor` is set, send it with the same filters for the next page."""

    timers: list[TimerView]
    cursor: str | None = None


class TimerCounts(Payload):
    """The number of timers in each state. If `exact` is false, the service stopped counting at a limit."""

    counts: Mapping[State, int]
    overdue: int = Field(ge=0, description="The number of Scheduled timers whose due time has passed.")
    exact: bool
    oldest_due: Instant | None = Field(default=None, description="The earliest due time of a Scheduled timer.")
