"""The workflow that each slot of a schedule starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from timer_service.client.checks import check_text, wire_duration
from timer_service.client.models import UNSET
from timer_service.client.retry import Retry, wire_retry


@dataclass(frozen=True, kw_only=True)
class WorkflowStart:
    """The workflow that each slot of a schedule starts. Its id is `<schedule>/<slot>`.

    The fields are those of `Workflows.start`. `deadline_in` counts from the start. A slot that finds an open workflow
    with its `concurrency_key` is skipped.
    """

    workflow_type: str
    data: Any = UNSET
    queue: str | None = None
    deadline_in: timedelta | None = None
    retry: Retry | None = None
    concurrency_key: str | None = None


def wire_start(start: object) -> Mapping[str, Any]:
    """Return the wire form of a `WorkflowStart`. Raises `ValueError` if a field or its type is wrong."""
    if not isinstance(start, WorkflowStart):
        raise ValueError("start must be a WorkflowStart")  # noqa: TRY004 - like every wrong argument
    key = start.concurrency_key
    fields = {
        "type": check_text("workflow_type", start.workflow_type),
        "queue": None if start.queue is None else check_text("queue", start.queue),
        "deadlineIn": None if start.deadline_in is None else wire_duration("deadline_in", start.deadline_in),
        "retry": None if start.retry is None else wire_retry(start.retry),
        "concurrencyKey": None if key is None else check_text("concurrency_key", key),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return given if start.data is UNSET else {**given, "input": start.data}
