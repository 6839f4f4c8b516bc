"""The worker protocol: the requests of workers, and the replies. docs/workflows.md describes their effects."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from timer_service.core.service.workflow_start import DEFAULT_QUEUE, EffectName, Json, RetryPolicy
from timer_service.core.values.duration import HOUR
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Identifier, Payload
from timer_service.core.values.paging import PageCursor
from timer_service.workflows.messages import MAX_EFFECTS, WITHOUT_NUL, ErrorView

MAX_TYPES = 100
MAX_SLOTS = 1000
MAX_WAIT_MS = 10_000
MIN_LEASE_MS = 10_000
MAX_LEASE_MS = 600_000
REPLY_BYTES = 512 * 1024
"""The most bytes of the tasks in a reply, and of a report that a worker sends."""
INLINE_EFFECTS_BYTES = 64 * 1024
"""The most bytes of effects in a task. A worker gets the rest with get-effects."""
LONGEST_WAIT_MS = 366 * 24 * HOUR
MAX_REPORT_NUMBER = 2**31 - 1

Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
EffectKey = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f:]{1,100}(:[1-9][0-9]{0,3})?$")]
"""The key of an effect: its name, and `:n` if n earlier effects of the workflow have this name."""
Milliseconds = Annotated[int, Field(ge=0, le=LONGEST_WAIT_MS, strict=True)]


class EffectKind(StrEnum):
    """The kind of an effect."""

    STEP = "step"
    SLEEP = "sleep"
    MESSAGE = "message"


class EffectStatus(StrEnum):
    """The status of an effect."""

    OPEN = "open"
    """A step may start again, or a wait is not over."""
    DONE = "done"
    FAILED = "failed"
    """A step has no attempt left, or a wait for a message has reached its timeout."""


class PollTasks(Payload):
    """Ask for tasks. The reply comes as soon as there is a task, at the latest after `waitMs`."""

    worker_id: Identifier
    name: Identifier | None = Field(default=None, description="The name of the worker in list-workers.")
    queue: EffectName = DEFAULT_QUEUE
    types: list[EffectName] = Field(min_length=1, max_length=MAX_TYPES, description="The types it can execute.")
    slots: int = Field(
        ge=0,
        le=MAX_SLOTS,
        strict=True,
        description="The most tasks of the reply. 0: this poll and the held one of the worker are answered at once.",
    )
    wait_ms: int = Field(default=MAX_WAIT_MS, ge=0, le=MAX_WAIT_MS, strict=True)
    lease_ms: int = Field(default=30_000, ge=MIN_LEASE_MS, le=MAX_LEASE_MS, strict=True)


class EffectView(Payload):
    """A stored effect of a workflow."""

    key: EffectKey
    kind: EffectKind
    status: EffectStatus
    seq: int | None = Field(default=None, ge=1, description="The number under which the function got the result.")
    result: Any = None
    error: ErrorView | None = None
    failures: int = Field(default=0, ge=0, description="How many attempts of the step have failed.")
    start_in_ms: int | None = Field(default=None, ge=0, description="When an open step may start again, from now.")
    over_in_ms: int | None = Field(
        default=None, ge=0, description="When an open sleep, or a wait with a timeout, is over at the latest, from now."
    )


class Task(Payload):
    """A workflow for a worker, with what it has stored."""

    workflow_id: Identifier
    workflow_type: EffectName = Field(alias="type")
    token: Token
    attempt: int = Field(ge=1, description="How many leases in a row ran out, and this one.")
    input: Any = None
    retry: RetryPolicy
    started_at: Instant = Field(
        description="When the broker stored the command that created the workflow, or the slot that started it."
    )
    deadline_at: Instant | None = None
    effects: list[EffectView] = Field(description="In order of `seq`, then those without, in order of the key.")
    cursor: str | None = Field(default=None, description="If set, get-effects returns more effects.")


class Tasks(Payload):
    """The reply to poll-tasks."""

    tasks: list[Task]


class StepResult(Payload):
    """An attempt of a step that has ended. An attempt without `error` has succeeded."""

    key: EffectKey
    attempt: int = Field(ge=1, strict=True, description="Its number: one more than the failures before.")
    result: Json = None
    error: ErrorView | None = None
    retryable: bool = True
    after_ms: Milliseconds | None = Field(default=None, description="The delay of the next attempt, if not by policy.")
    retry: RetryPolicy | None = Field(default=None, description="The policy of this step. None: of the workflow.")


class Seen(Payload):
    """A result that the function got, and its number."""

    key: EffectKey
    seq: int = Field(ge=1, le=MAX_EFFECTS, strict=True)


class Wait(Payload):
    """A sleep or a wait for a message that began. The service counts its time from when it stores it."""

    key: EffectKey = Field(description="The name in it is the name of the message.")
    kind: Literal[EffectKind.SLEEP, EffectKind.MESSAGE]
    ms: Milliseconds | None = Field(default=None, description="The length of a sleep, or the timeout of a message.")


class Continue(Payload):
    """Go on with the task. The lease is renewed."""

    action: Literal["continue"]


class Park(Payload):
    """End the task because every branch of the function waits. If a wait is over, the task goes on instead."""

    action: Literal["park"]


class Complete(Payload):
    """End the workflow: its function has returned."""

    action: Literal["complete"]
    result: Json = None


class Fail(Payload):
    """End the workflow: its function has raised an error."""

    action: Literal["fail"]
    error: ErrorView
    step: EffectKey | None = Field(default=None, description="The step whose failure the function did not catch.")


class ReleaseReason(StrEnum):
    """Why a worker gives a task back."""

    SHUTDOWN = "shutdown"
    NON_DETERMINISTIC = "non_deterministic"


class Release(Payload):
    """Give the task back. It does not count as an attempt."""

    action: Literal["release"]
    reason: ReleaseReason
    error: Annotated[str, WITHOUT_NUL, Field(max_length=4096)] | None = None


Then = Annotated[Continue | Park | Complete | Fail | Release, Field(discriminator="action")]


class Report(Payload):
    """What happened to one task since the last report."""

    workflow_id: Identifier
    token: Token
    number: int = Field(
        ge=1,
        le=MAX_REPORT_NUMBER,
        strict=True,
        description="1 for the first report with this token, then 2, 3 and so on. A repeated report has the same.",
    )
    steps: list[StepResult] = Field(default_factory=list, max_length=MAX_EFFECTS)
    seen: list[Seen] = Field(default_factory=list, max_length=MAX_EFFECTS)
    waits: list[Wait] = Field(default_factory=list, max_length=MAX_EFFECTS)
    then: Then


class ReportTasks(Payload):
    """Report what happened to tasks. A repeated report has the same outcome and no further effect."""

    worker_id: Identifier
    reports: list[Report] = Field(min_length=1, max_length=MAX_SLOTS)


class ReportOutcome(StrEnum):
    """The outcome of a report."""

    RECORDED = "recorded"
    """It is stored, and the task goes on."""
    RESUMED = "resumed"
    """It is stored. The task goes on instead of parking, because a wait is over or a step may start again."""
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    UNCHANGED = "unchanged"
    """This token has ended the task before, or a report with a higher number was handled. Nothing is stored."""
    LOST = "lost"
    """The task is no longer this worker's. Nothing is stored."""
    CONFLICT = "conflict"
    """A result differs from the stored one. Nothing is stored."""


class NextAttempt(Payload):
    """What follows a failed attempt of a step, or a step that may start now because the task goes on."""

    key: EffectKey
    start_in_ms: int | None = Field(default=None, ge=0, description="When the next attempt may start; None: never.")


class Reported(Payload):
    """The outcome of one report."""

    workflow_id: Identifier
    outcome: ReportOutcome
    over: list[EffectView] = Field(default_factory=list, description="The waits that are over and not yet seen.")
    failed_steps: list[NextAttempt] = Field(
        default_factory=list,
        description="For each step with a failed attempt. With `resumed`, also the first one that may start again.",
    )


class ReportsReply(Payload):
    """The reply to report-tasks: an outcome for each report, in order."""

    reports: list[Reported]


class HeldTask(Payload):
    """A task whose lease a worker renews."""

    workflow_id: Identifier
    token: Token


class RenewTasks(Payload):
    """Renew the leases of tasks: each ends one lease length from now."""

    worker_id: Identifier
    tasks: list[HeldTask] = Field(min_length=1, max_length=MAX_SLOTS)


class LostTask(Payload):
    """A task that is no longer this worker's. The worker may have another task of the workflow."""

    workflow_id: Identifier
    token: Token


class Renewed(Payload):
    """What a worker should know about one renewed task."""

    workflow_id: Identifier
    token: Token
    over: list[EffectView] = Field(description="The waits that are over and not yet seen.")


class RenewReply(Payload):
    """The reply to renew-tasks."""

    lost: list[LostTask] = Field(description="The tasks that are no longer this worker's.")
    tasks: list[Renewed] = Field(description="The tasks with waits that are over.")


class GetEffects(Payload):
    """Ask for the effects of a task that did not fit into it."""

    workflow_id: Identifier
    token: Token
    cursor: PageCursor | None = None


class EffectsPage(Payload):
    """A page of effects, in the order of `Task.effects`."""

    effects: list[EffectView]
    cursor: str | None = None
