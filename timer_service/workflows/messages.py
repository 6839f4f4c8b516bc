"""The commands and events of workflows, and the types they share with the worker protocol."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo
from pydantic_core import PydanticCustomError

from timer_service.core.service.workflow_start import (
    DEFAULT_QUEUE,
    ConcurrencyFields,
    EffectName,
    Json,
    RetryPolicy,
)
from timer_service.core.values.duration_field import Duration
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Identifier, Payload, TenantPayload

MAX_EFFECTS = 10_000
"""The most effects of one workflow."""

WITHOUT_NUL = StringConstraints(pattern=r"^[^\x00]*$")
"""PostgreSQL stores no text with U+0000."""


class WorkflowStatus(StrEnum):
    """The status of a workflow."""

    QUEUED = "queued"
    """It waits for its concurrency key."""
    WAITING = "waiting"
    """It is available to workers at an instant."""
    RUNNING = "running"
    """A worker executes it."""
    PARKED = "parked"
    """It waits for a message, without an instant."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED})


class FailureCode(StrEnum):
    """Why a workflow failed."""

    STEP_FAILED = "STEP_FAILED"
    """A step failed in all its attempts, and the function did not catch it."""
    WORKFLOW_ERROR = "WORKFLOW_ERROR"
    """The function raised an error outside a step."""
    DEADLINE = "DEADLINE"
    CRASHED = "CRASHED"
    """Its worker died each time, or lost its lease."""
    TOO_LARGE = "TOO_LARGE"
    """It has too many effects, or its results are too large."""


class ErrorView(Payload):
    """An error of a step or a workflow."""

    error_type: Identifier = Field(alias="type", description="The name of the exception's class.")
    message: str = Field(default="", max_length=4096)


class WorkflowPayload(TenantPayload):
    """The payload of a message about one workflow."""

    workflow_id: Identifier


def _exclude(other: str, name: str) -> AfterValidator:
    """Return a validator of a field that cannot be combined with the field `other`, which is declared before it."""

    def check(value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get(other) is not None:
            raise PydanticCustomError("two_times", "cannot be combined with {name}", {"name": name})
        return value

    return AfterValidator(check)


class StartWorkflow(WorkflowPayload, ConcurrencyFields):
    """Start a workflow: a worker executes the function with the name `type`, until it ends."""

    type: ClassVar[str] = "StartWorkflow"

    workflow_type: EffectName = Field(alias="type", description="The name of the function.")
    queue: EffectName = DEFAULT_QUEUE
    input: Json = None
    start_in: Duration | None = Field(
        default=None, description="The time from when the broker stores the command to the start, at most 366 days."
    )
    start_at: Annotated[Instant | None, _exclude("start_in", "startIn")] = None
    deadline_in: Duration | None = Field(
        default=None, description="The time from when the broker stores the command to the deadline, at most 366 days."
    )
    deadline_at: Annotated[Instant | None, _exclude("deadline_in", "deadlineIn")] = Field(
        default=None, description="If the workflow has not ended at this instant, it fails with the code DEADLINE."
    )
    retry: RetryPolicy | None = Field(default=None, description="The default of its steps.")


class SendToWorkflow(WorkflowPayload):
    """Send a message to a workflow. It is stored until the workflow waits for a message of this name."""

    type: ClassVar[str] = "SendToWorkflow"

    name: EffectName
    data: Json = None
    message_id: Identifier | None = Field(
        default=None, description="A second message with this id has no effect, while the workflow is known."
    )


class CancelWorkflow(WorkflowPayload):
    """End a workflow that has not ended. Its worker stops at the next request."""

    type: ClassVar[str] = "CancelWorkflow"

    reason: Annotated[str, WITHOUT_NUL, Field(max_length=1000)] | None = None


class RetryWorkflow(WorkflowPayload):
    """Continue a failed workflow. If its function raised an error when it got a failed step, this step runs again."""

    type: ClassVar[str] = "RetryWorkflow"
    is_operator_action: ClassVar[bool] = True

    deadline_in: Duration | None = Field(
        default=None,
        description="The time from when the broker stores the command to the new deadline. None: no deadline.",
    )


class EndedPayload(WorkflowPayload):
    """The payload of an event about the end of a workflow."""

    workflow_type: EffectName = Field(alias="type")
    started_at: Instant = Field(
        description="When the broker stored the command that created the workflow, or the slot that started it."
    )
    ended_at: Instant


class WorkflowCompleted(EndedPayload):
    """The function of a workflow has returned. If the event is sent more than once, the envelope id is the same."""

    type: ClassVar[str] = "WorkflowCompleted"

    result: Any = None


class WorkflowFailed(EndedPayload):
    """A workflow has failed. RetryWorkflow continues it."""

    type: ClassVar[str] = "WorkflowFailed"

    code: FailureCode
    error: ErrorView | None = None
    step: str | None = Field(default=None, description="The key of the step that failed.")


class WorkflowCancelled(EndedPayload):
    """A workflow was cancelled."""

    type: ClassVar[str] = "WorkflowCancelled"

    reason: str | None = None


class WorkflowBlocked(WorkflowPayload):
    """The function of a workflow does not match its stored effects. It is tried again until it does."""

    type: ClassVar[str] = "WorkflowBlocked"

    workflow_type: EffectName = Field(alias="type")
    error: str
