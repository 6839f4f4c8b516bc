"""PORT: how a slice starts workflows in its own transaction. And the types of the wire that both slices use."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo
from pydantic_core import PydanticCustomError

from timer_service.core.events.cause import Cause
from timer_service.core.intake.route import Lane
from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.data import check_fits
from timer_service.core.values.duration import DAY, SECOND
from timer_service.core.values.duration_field import WRITE_DURATION, parse_between, schema_between
from timer_service.core.values.message import Identifier, Payload, Position

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


class WhenBusy(StrEnum):
    """What becomes of a workflow that starts or continues while its concurrency key is busy."""

    SKIP = "skip"
    """It does not start."""
    QUEUE = "queue"
    """It is queued: it starts when it is its turn."""
    REPLACE = "replace"
    """It starts in place of the oldest workflow that has the key, which is cancelled."""


MOST_WITH_KEY = 1000
"""How many workflows with one concurrency key can be started at a time."""


def _needs_key(value: Any, info: ValidationInfo) -> Any:
    """Return the value of a field that is about the concurrency key, which is declared before it."""
    if value is not None and info.data.get("concurrency_key", "invalid") is None:
        raise PydanticCustomError("needs_key", "needs concurrencyKey")
    return value


class Concurrency(NamedTuple):
    """The concurrency key of a workflow, and what its use depends on."""

    key: str
    limit: int = 1
    """The workflow starts if fewer workflows with the key are started."""
    when_busy: WhenBusy = WhenBusy.SKIP


def read_concurrency(values: Sequence[Any] | None) -> Concurrency | None:
    """Return the concurrency key of stored values: key, limit, policy; None without a key."""
    if values is None or values[0] is None:
        return None
    key, limit, when_busy = values
    return Concurrency(key, limit, WhenBusy(when_busy))


class ConcurrencyFields(Payload):
    """The fields about the concurrency key of a workflow."""

    concurrency_key: Identifier | None = Field(
        default=None,
        description="Of the workflows with one key, at most `concurrencyLimit` are started and have not ended.",
    )
    concurrency_limit: Annotated[int | None, AfterValidator(_needs_key)] = Field(
        default=None, ge=1, le=MOST_WITH_KEY, strict=True, description="Default: 1."
    )
    when_busy: Annotated[WhenBusy | None, AfterValidator(_needs_key)] = Field(
        default=None,
        description="If as many are started, or others wait: `skip` (default): it does not start. `queue`: it waits "
        "for its turn. `replace`: the oldest is cancelled, and it starts.",
    )

    @property
    def concurrency(self) -> Concurrency | None:
        """The concurrency key with its limit and policy."""
        if self.concurrency_key is None:
            return None
        return Concurrency(self.concurrency_key, self.concurrency_limit or 1, self.when_busy or WhenBusy.SKIP)


class ConcurrencyView(Payload):
    """The concurrency key of a workflow in a reply."""

    concurrency_key: Identifier | None = None
    concurrency_limit: int | None = Field(default=None, ge=1)
    when_busy: WhenBusy | None = None


def concurrency_view(concurrency: Concurrency | None) -> Mapping[str, object]:
    """Return the fields of `ConcurrencyView`; none without a key."""
    if concurrency is None:
        return {}
    key, limit, when_busy = concurrency
    return {"concurrencyKey": key, "concurrencyLimit": limit, "whenBusy": when_busy}


class WorkflowSpec(NamedTuple):
    """What a workflow is started with, without its input."""

    workflow_type: str
    queue: str
    deadline_in: int | None = None
    """The time from the start to the deadline, in ms."""
    retry: str | None = None
    """The JSON of its `RetryPolicy`; None: the default."""
    concurrency: Concurrency | None = None


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
    """Whether it also starts a workflow that an earlier start left as cancelled, because its key was busy then."""


class StartResult(StrEnum):
    """How a `WorkflowStart` ended."""

    STARTED = "started"
    QUEUED = "queued"
    """It starts when its concurrency key is free."""
    UNCHANGED = "unchanged"
    """There is the same workflow already."""
    BUSY = "busy"
    """Its concurrency key is busy. The workflow is stored as cancelled."""
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
    """The loop that needs to know about it: the one of concurrency keys, or of deadlines."""
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
