"""The values that the client returns about workflows, with timezone-aware datetimes."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from timer_service.client.names import EffectKind, EffectStatus, WhenBusy, WorkflowStatus
from timer_service.client.view import Open, View


class RetryPolicy(View):
    """When a failed step is tried again."""

    max_attempts: int
    first: timedelta
    factor: float
    cap: timedelta


class WorkflowError(View):
    """An error of a workflow or a step."""

    type: str
    message: str = ""


class Workflow(View):
    """A workflow, without its texts and effects."""

    tenant: str
    workflow_id: str
    type: str
    queue: str
    status: Open[WorkflowStatus]
    created_at: datetime
    due_at: datetime | None = None
    """When a worker may continue it at the earliest."""
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    attempt: int
    """How many leases in a row ran out, and the current one."""
    retries: int
    """How many times `Workflows.retry` has continued it."""
    effects: int
    messages: int
    """How many messages it has not taken."""
    worker_id: str | None = None
    claimed_at: datetime | None = None
    blocked_by: str | None = None
    """Why its function does not match its effects, if that happened three times in a row."""
    retry: RetryPolicy | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    when_busy: Open[WhenBusy] | None = None
    queued_behind: str | None = None
    """If it is queued: the workflow that is directly before it. Only in the results of `get` and `list`."""
    code: str | None = None
    """Why it failed."""
    step: str | None = None
    """The key of the step that failed."""
    reason: str | None = None
    """Why it was cancelled."""
    has_workers: bool | None = None
    """Whether a worker asks for its queue and type. Only a list has this and the next two fields."""
    waits_for: Sequence[str] | None = None
    """The first three messages for which it waits."""
    failure: WorkflowError | None = None
    """The error of its function, with at most 200 characters."""


class WorkflowEffect(View):
    """A step, a sleep or a wait for a message of a workflow."""

    key: str
    kind: Open[EffectKind]
    status: Open[EffectStatus]
    seq: int | None = None
    """The function got its result as the seq-th."""
    failures: int = 0
    due_at: datetime | None = None
    result: Any = None
    error: WorkflowError | None = None


class WorkflowDetail(View):
    """A workflow with its texts and all its effects, in the order in which the function got their results."""

    workflow: Workflow
    has_workers: bool
    """Whether a worker asked for its queue and type in the last minute."""
    input: Any = None
    result: Any = None
    failure: WorkflowError | None = None
    """The error of its function."""
    effects: Sequence[WorkflowEffect] = ()


class WorkflowCounts(View, wire={"by_status": "counts"}):
    """How many workflows a tenant has."""

    by_status: Mapping[str, int]
    exact: bool
    """False if the service stopped counting at its limit. The numbers are lower bounds then."""


class WorkerInfo(View):
    """A process that executes workflows."""

    worker_id: str
    name: str | None = None
    queue: str
    types: Sequence[str]
    slots: int
    first_seen_at: datetime
    seen_at: datetime
    online: bool
    """Whether the service heard of it in the last minute."""
