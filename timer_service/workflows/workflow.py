"""The values of a workflow: its definition, who holds it, and how far it is. Pure."""

from typing import NamedTuple

from timer_service.core.events.cause import Cause
from timer_service.core.service.workflow_start import Concurrency, RetryPolicy, WhenBusy
from timer_service.core.values.message import Position
from timer_service.workflows.messages import FailureCode, WorkflowStatus

NEVER = Position(0, 0)
"""The position of a fact that no command has decided."""
DEFAULT_RETRY = RetryPolicy()

_LOST_BEFORE_DELAY = 3
_FIRST_DELAY_MS = 10_000
_LONGEST_DELAY_MS = 300_000
_FIRST_BLOCK_MS = 5_000
_UNSEEN_FACTOR = 3
"""How many times more leases may run out if no worker has renewed them."""
BLOCKED_FROM = 3
"""A workflow is shown as blocked after this many releases as not deterministic in a row."""


class Key(NamedTuple):
    """The key of a workflow."""

    tenant_id: str
    workflow_id: str


class Definition(NamedTuple):
    """The values of a StartWorkflow, without the input."""

    workflow_type: str
    queue: str
    digest: str
    """Of type, queue and input."""
    deadline_at: int | None = None
    retry: str | None = None
    """The JSON of its `RetryPolicy`; None: the default."""
    concurrency: Concurrency | None = None

    @property
    def policy(self) -> RetryPolicy:
        """The default policy of its steps."""
        return DEFAULT_RETRY if self.retry is None else RetryPolicy.model_validate_json(self.retry)


class Hold(NamedTuple):
    """The lease of the worker that executes a workflow."""

    token: str
    worker_id: str
    claimed_at: int
    lease_ms: int
    report_number: int = 0
    """The highest number of a report that was handled under the token; 0 without one."""


class Texts(NamedTuple):
    """The texts of a workflow that a transaction sets, as JSON. Stored ones are not loaded."""

    input: str | None = None
    result: str | None = None
    error: str | None = None


class Workflow(NamedTuple):
    """A workflow. Without a `definition` it is not started: the row holds messages and the newest cancel."""

    key: Key
    created_at: int
    definition: Definition | None = None
    cause: Cause = Cause()
    started_by: Position = NEVER
    """The command that started it; never if the start was skipped. The ids of its events come from it."""
    cancelled_by: Position = NEVER
    """The newest cancel of a workflow that is not started. Slots of older schedules do not start it."""
    status: WorkflowStatus = WorkflowStatus.CANCELLED
    due_at: int | None = None
    """When a worker may continue it at the earliest; None if it has ended or waits for a message only."""
    available_at: int | None = None
    """When a worker may claim it: `due_at`, or the end of the lease and of the delay after it."""
    counted_from: int | None = None
    """The instant, by the service's clock, from which `available_at` counts; None: it does not depend on this clock."""
    key_place: int | None = None
    """Its place among those that wait for its concurrency key, if it is queued."""
    key_due_at: int | None = None
    """When to look at its concurrency key, because it has ended or is queued to replace another workflow."""
    hold: Hold | None = None
    attempt: int = 0
    """The claims since the last report."""
    renewed: int = 0
    """The last of these claims that its worker has renewed, so that it has run the function; 0: none."""
    last_error: str | None = None
    """Why it is blocked."""
    input_bytes: int = 0
    effects: int = 0
    effect_bytes: int = 0
    """The bytes of the results of its effects, and of its own result."""
    seen: int = 0
    """How many results the function got: the highest `seq`."""
    messages: int = 0
    """The messages that wait, and the bytes of their data."""
    message_bytes: int = 0
    blocks: int = 0
    """The releases as not deterministic in a row."""
    times_blocked: int = 0
    retries: int = 0
    settled_by: str | None = None
    """The last token that ended a task."""
    failure_code: str | None = None
    """A `FailureCode`, or the code of a newer version of the service."""
    failed_step: str | None = None
    reason: str | None = None
    ended_at: int | None = None
    """If it is not started: when the newest message or cancel of it came. Retention counts from then."""
    is_deleting: bool = False
    """Whether retention has deleted some of its rows, so that it never continues."""
    texts: Texts = Texts()

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at is None

    @property
    def is_blocked(self) -> bool:
        """Whether its function does not match its effects, again and again."""
        return self.is_open and self.blocks >= BLOCKED_FROM

    @property
    def lane(self) -> tuple[str, str, str]:
        """The unit of dispatch: tenant, queue and type."""
        assert self.definition is not None  # noqa: S101 - it is dispatched, so it was started
        return self.key.tenant_id, self.definition.queue, self.definition.workflow_type

    def wait_until(self, at: int, *, counted_from: int | None) -> "Workflow":
        """Return the workflow without a worker, available at an instant."""
        return self._replace(
            status=WorkflowStatus.WAITING, due_at=at, available_at=at, counted_from=counted_from, hold=None
        )

    def wait_for_key(self, place: int, at: int, now: int) -> "Workflow":
        """Return the workflow queued at a place. When it is its turn, a worker may continue it, but not before `at`."""
        assert self.definition is not None  # noqa: S101 - it starts or continues
        concurrency = self.definition.concurrency
        replaces = concurrency is not None and concurrency.when_busy is WhenBusy.REPLACE
        key_due_at = now if replaces else self.key_due_at
        return self._replace(status=WorkflowStatus.QUEUED, due_at=at, key_place=place, key_due_at=key_due_at)

    def take_key(self, now: int) -> "Workflow":
        """Return a queued workflow whose turn it is."""
        assert self.due_at is not None  # noqa: S101 - like every one that is queued
        at, counted_from = (self.due_at, None) if self.due_at > now else (now, now)
        return self.wait_until(at, counted_from=counted_from)._replace(key_place=None)

    def park(self) -> "Workflow":
        """Return the workflow without a worker, until a message comes."""
        return self._replace(status=WorkflowStatus.PARKED, due_at=None, available_at=None, counted_from=None, hold=None)

    def count_report(self, number: int) -> "Workflow":
        """Return the workflow after a report with this number was handled."""
        assert self.hold is not None  # noqa: S101 - only tasks are reported
        return self._replace(hold=self.hold._replace(report_number=number))

    def renew(self, now: int) -> "Workflow":
        """Return the workflow with a lease from now. If earlier leases ran out, a delay follows the lease.

        If the clock was set back, the lease may end before the workflow was due. It was due then.
        """
        assert self.hold is not None  # noqa: S101 - only tasks are renewed
        assert self.due_at is not None  # noqa: S101 - like every workflow that is available
        end = now + self.hold.lease_ms + delay_after(self.attempt)
        return self._replace(due_at=min(self.due_at, end), available_at=end, counted_from=now)

    def block(self, error: str | None, now: int) -> "Workflow":
        """Return the workflow after its worker found that the function does not match the effects."""
        blocks = self.blocks + 1
        times_blocked = self.times_blocked + 1 if blocks == BLOCKED_FROM else self.times_blocked
        waiting = self.wait_until(now + _doubled(_FIRST_BLOCK_MS, self.blocks), counted_from=now)
        return waiting._replace(blocks=blocks, times_blocked=times_blocked, last_error=error)

    def end(self, status: WorkflowStatus, now: int, texts: Texts = Texts()) -> "Workflow":  # noqa: B008 - immutable
        """Return the workflow after its end. An input that the same transaction sets is kept."""
        has_key = self.definition is not None and self.definition.concurrency is not None
        return self._replace(
            status=status,
            due_at=None,
            available_at=None,
            counted_from=None,
            key_place=None,
            key_due_at=now if has_key else None,
            hold=None,
            ended_at=now,
            texts=texts._replace(input=self.texts.input),
        )

    def fail(self, code: FailureCode, now: int, *, step: str | None = None, error: str | None = None) -> "Workflow":
        """Return the workflow after a failure. `error` is the JSON of an `ErrorView`."""
        return self.end(WorkflowStatus.FAILED, now, Texts(error=error))._replace(failure_code=code, failed_step=step)


def delay_after(attempt: int) -> int:
    """Return how many ms pass from the end of a lease to the next claim, after `attempt` claims without a report."""
    return 0 if attempt < _LOST_BEFORE_DELAY else _doubled(_FIRST_DELAY_MS, attempt - _LOST_BEFORE_DELAY)


def _doubled(first_ms: int, times: int) -> int:
    """Return a delay that is doubled so many times, up to the longest one."""
    return min(first_ms << min(times, 10), _LONGEST_DELAY_MS)


def has_crashed(workflow: Workflow, max_attempts: int) -> bool:
    """Return whether a workflow that is claimed again has lost too many leases in a row.

    If its workers die before they renew a lease, it may not be the workflow that ends them. Then it has more attempts.
    """
    return workflow.renewed >= max_attempts or workflow.attempt > _UNSEEN_FACTOR * max_attempts


def unstarted(key: Key, now: int) -> Workflow:
    """Return a workflow that no command has named yet."""
    return Workflow(key, now, ended_at=now)
