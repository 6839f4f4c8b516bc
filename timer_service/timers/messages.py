"""The wire shape of the timers' commands and events."""

import json
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from timer_service.core.instant import Instant
from timer_service.core.message import Identifier, TenantPayload

MAX_DATA_BYTES = 64 * 1024


def dump_data(data: object) -> str:
    """Write `data` as compact JSON text, as it is stored. Raises ValueError for numbers JSON does not have."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _fits(data: object) -> object:
    try:
        size = len(dump_data(data).encode())
    except ValueError as error:
        raise PydanticCustomError("data", "has a number that JSON can't hold") from error
    if size > MAX_DATA_BYTES:
        raise PydanticCustomError(
            "too_large",
            "has {size} bytes of JSON; at most {most} are taken",
            {"size": size, "most": MAX_DATA_BYTES},
        )
    return data


Data = Annotated[Any, AfterValidator(_fits), Field(description="Any JSON, at most 64 KiB; handed back in the event.")]


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
