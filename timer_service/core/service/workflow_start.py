"""PORT: how a slice starts workflows in its own transaction. And the types of the wire that both slices use."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import AfterValidator, Field, StringConstraints

from timer_service.core.events.cause import Cause
from timer_service.core.intake.route import Lane
from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.data import check_fits
from timer_service.core.values.duration import DAY, SECOND
from timer_service.core.values.duration_field import WRITE_DURATION, parse_between, schema_between
from timer_service.core.values.message import Payload, Position

DEFAULT_QUEUE = "default"
NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f:]{1,100}$"
EffectName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""The name of a step, a sleep or a message; a type or a queue."""

Json = Annotated[Any, AfterValidator(check_fits), Field(description="Any JSON of at most 64 KiB.")]


class RetryPolicy(Payload):
    """When a failed step is tried again: after `first`, then `factor` times longer each time, `cap` at most."""

    max_attempts: int = Field(default=5, ge=1, le=1000, strict=True)
    first: Annotated[int, parse_between(0, DAY), WRITE_DURATION, schema_between(0, DAY)] = SECOND
    factor: float = Field(default=2, ge=1, le=100)
    cap: Annotated[int, parse_between(0, 7 * DAY), WRITE_DURATION, schema_between(0, 7 * DAY)] = 5 * 60 * SECOND


class WorkflowSpec(NamedTuple):
    """What a workflow is started with, without its input."""

    workflow_type: str
    queue: str
    deadline_in: int | None = None
    """The time from the start to the deadline, in ms."""
    retry: str | None = None
    """The JSON of its `RetryPolicy`; None: the default."""
    concurrency_key: str | None = None


class WorkflowStart(NamedTuple):
    """A workflow to start, unless its id or its concurrency key is taken."""

    tenant_id: str
    workflow_id: str
    spec: WorkflowSpec
    input: str | None
    """JSON."""
    position: Position
    """The position of the command that wants it. A newer CancelWorkflow wins."""
    cause: Cause
    created_at: int
    """When it counts as created: the same if it is started again after a restore. 0: when it is started."""
    retries_skipped: bool = False
    """Whether it also starts a workflow that an earlier start left as cancelled, because its key was taken then."""


class StartResult(StrEnum):
    """How a `WorkflowStart` ended."""

    STARTED = "started"
    UNCHANGED = "unchanged"
    """There is the same workflow already."""
    BUSY = "busy"
    """An open workflow has the concurrency key. The workflow is stored as cancelled."""
    EXISTS = "exists"
    """There is another workflow with this id."""
    CANCELLED = "cancelled"
    """A newer command has cancelled it."""
    OVER_QUOTA = "over_quota"


class Started(NamedTuple):
    """The result of a `WorkflowStart`. After the commit, offer the lane to workers, and wake the loop."""

    result: StartResult
    lane: Lane | None = None
    """The lane of a workflow that was started."""
    loop: str | None = None
    """The loop that needs to know about it: the one of deadlines."""
    excess: Excess | None = None
    """The limit that it would exceed."""


class StartWorkflows(Protocol):
    """Starts workflows in a transaction."""

    async def __call__(
        self, tx: Transaction, starts: Sequence[WorkflowStart], now: int, /, *, quotas: Quotas
    ) -> Sequence[Started]:
        """Start workflows in order. Return one result for each; two with one id are one workflow.

        Raises `DatabaseBlockedError` if another transaction holds a row, an id or a concurrency key for too long.
        """
        ...
