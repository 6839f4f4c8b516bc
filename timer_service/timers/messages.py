"""Wire models of the commands and events of timers."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from timer_service.core.values.data import check_fits
from timer_service.core.values.duration import Duration
from timer_service.core.values.instant import LATEST, Instant, out_of_range
from timer_service.core.values.message import Identifier, Payload, PlainCommand, Tenant, TenantPayload
from timer_service.core.values.paging import PageCursor, PageLimit
from timer_service.core.values.stored_json import DamagedFields
from timer_service.timers.plain_timer import decode_plain_timer


class State(StrEnum):
    """The state of a timer."""

    SCHEDULED = "Scheduled"
    REACHED = "Reached"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"
    FAILED = "Failed"


Data = Annotated[
    Any, AfterValidator(check_fits), Field(description="Any JSON of at most 64 KiB. The event carries it unchanged.")
]


def _is_set(field: str) -> JsonDict:
    """Return a schema for objects in which a field has a value."""
    return {"required": [field], "properties": {field: {"type": ["string", "integer"]}}}


def _check_one_due_time(due_at: int | None, info: ValidationInfo) -> int | None:
    """Return `due_at`. Raises if `due_in`, the field before it, is set too, or if neither is."""
    if "due_in" in info.data and (due_at is None) == (info.data["due_in"] is None):
        reason = "is missing" if due_at is None else "cannot be combined with dueIn"
        raise PydanticCustomError("due_time", "{reason}: give either dueAt or dueIn", {"reason": reason})
    return due_at


def _check_expires_at(expires_at: int | None, info: ValidationInfo) -> int | None:
    """Return `expires_at`. Raises if it is not after `due_at`."""
    if expires_at is None or "due_at" not in info.data:
        return expires_at
    due_at = info.data["due_at"]
    if due_at is None:
        raise PydanticCustomError("expiry", "needs dueAt: with dueIn, give lateBy")
    if expires_at <= due_at:
        raise PydanticCustomError("expiry", "must be after dueAt")
    return expires_at


def _check_late_by(late_by: int | None, info: ValidationInfo) -> int | None:
    """Return `late_by`. Raises if it is 0, if `expires_at` is set too, or if the expiry is after the year 9999."""
    if late_by is None:
        return None
    if late_by == 0:
        raise PydanticCustomError("expiry", "must be longer than 0")
    if info.data.get("expires_at") is not None:
        raise PydanticCustomError("expiry", "cannot be combined with expiresAt")
    if (info.data.get("due_at") or 0) + late_by > LATEST:
        raise out_of_range("must be shorter: the expiry must be between 1970-01-01 and 9999-12-31 (UTC)")
    return late_by


class TimerPayload(TenantPayload):
    """The payload of a command on one timer."""

    service_call_id: Identifier


class ScheduleTimer(TimerPayload):
    """Publish a `DueTimeReached` at `dueAt` or after `dueIn`. A newer ScheduleTimer for this call replaces it."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_is_set("dueAt"), _is_set("dueIn")]})
    type: ClassVar[str] = "ScheduleTimer"

    due_in: Duration | None = Field(
        default=None, description="The time from when the broker stores the command to the due time, at most 366 days."
    )
    due_at: Annotated[Instant | None, AfterValidator(_check_one_due_time)] = Field(default=None, validate_default=True)
    expires_at: Annotated[Instant | None, AfterValidator(_check_expires_at)] = Field(
        default=None,
        description="If the timer fires at or after this instant, its event is TimerExpired. It is later than dueAt.",
    )
    late_by: Annotated[Duration | None, AfterValidator(_check_late_by)] = Field(
        default=None, description="The time from the due time to the expiry, at most 366 days. It replaces expiresAt."
    )
    data: Data = None

    @classmethod
    def decode_plain(cls, body: bytes) -> PlainCommand | None:
        """Return the command of a usual body. See `plain_timer`."""
        return decode_plain_timer(body)


class CancelTimer(TimerPayload):
    """Cancel the timer if it has not fired yet. An older ScheduleTimer that is delivered later is ignored."""

    type: ClassVar[str] = "CancelTimer"


class CancelTimers(TenantPayload):
    """Cancel every timer whose id begins with `prefix` and that has not fired yet. Newer commands win."""

    type: ClassVar[str] = "CancelTimers"

    prefix: Identifier


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


class TimerExpired(TenantPayload):
    """A timer fired at or after its expiry. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "TimerExpired"

    service_call_id: Identifier
    due_at: Instant
    expired_at: Instant
    data: Data = None


class TimersCancelled(TenantPayload):
    """A CancelTimers is finished: `count` timers were cancelled. The envelope id is the same each time it is sent."""

    type: ClassVar[str] = "TimersCancelled"

    command_id: Identifier
    prefix: Identifier
    count: int = Field(ge=0)


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
    expires_at: Instant | None = None
    reached_at: Instant | None = None
    expired_at: Instant | None = None
    last_error: str | None = None
    correlation_id: Identifier | None = None
    data: Any = None
    damaged: DamagedFields = None


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
