"""The workflow that each slot of a schedule starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic

from timer_service.client.checks import (
    check_choice,
    check_text,
    check_type,
    check_whole,
    given,
    optional,
    wire_duration,
)
from timer_service.client.models import UNSET
from timer_service.client.names import WhenBusy
from timer_service.client.retry import Retry, wire_retry
from timer_service.client.workflow_type import Input, WorkflowType, name_of_type


@dataclass(frozen=True, kw_only=True)
class WorkflowStart(Generic[Input]):
    """The workflow that each slot of a schedule starts. Its id is `<schedule>/<slot>`.

    The fields are those of `Workflows.start`. `deadline_in` counts from when the slot fires.
    """

    workflow_type: str | WorkflowType[Input, Any]
    data: Input = UNSET
    queue: str | None = None
    deadline_in: timedelta | None = None
    retry: Retry | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    when_busy: WhenBusy | None = None


def wire_start(start: object) -> Mapping[str, Any]:
    """Return the wire form of a `WorkflowStart`. Raises `ValueError` if a field or its type is wrong."""
    start = check_type("start", start, WorkflowStart, "a WorkflowStart")
    fields = given(
        type=name_of_type(start.workflow_type),
        queue=optional(check_text, "queue", start.queue),
        deadlineIn=optional(wire_duration, "deadline_in", start.deadline_in),
        retry=None if start.retry is None else wire_retry(start.retry),
        concurrencyKey=optional(check_text, "concurrency_key", start.concurrency_key),
        concurrencyLimit=optional(check_whole, "concurrency_limit", start.concurrency_limit),
        whenBusy=optional(check_choice, "when_busy", start.when_busy, WhenBusy),
    )
    return fields if start.data is UNSET else {**fields, "input": start.data}
