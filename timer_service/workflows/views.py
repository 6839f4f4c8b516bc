"""The queries of workflows and their replies: the wire shapes."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from timer_service.core.service.workflow_start import ConcurrencyView, EffectName, RetryPolicy
from timer_service.core.values.instant import Instant
from timer_service.core.values.message import Identifier, Payload, Tenant
from timer_service.core.values.paging import PageCursor, PageLimit
from timer_service.workflows.messages import ErrorView, FailureCode, WorkflowStatus
from timer_service.workflows.protocol import EffectKey, EffectKind, EffectStatus


class GetWorkflow(Payload):
    """Ask for the workflow with an id, with one page of its effects."""

    workflow_id: Identifier
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class ListWorkflows(Payload):
    """Ask for one page of workflows: open ones, and then those that have ended, each newest first."""

    status: WorkflowStatus | None = None
    workflow_type: EffectName | None = Field(default=None, alias="type")
    limit: PageLimit = 100
    cursor: PageCursor | None = None


class CountWorkflows(Payload):
    """Ask for the number of workflows in each status."""


class ListWorkers(Payload):
    """Ask for one page of the workers that were seen lately, in order of their ids."""

    limit: PageLimit = 100
    cursor: PageCursor | None = None


class WorkflowView(ConcurrencyView):
    """A workflow in a reply to a command or a query."""

    tenant_id: Tenant
    workflow_id: Identifier
    workflow_type: EffectName = Field(alias="type")
    queue: EffectName
    status: WorkflowStatus
    created_at: Instant
    due_at: Instant | None = Field(default=None, description="When a worker may continue it at the earliest.")
    deadline_at: Instant | None = None
    ended_at: Instant | None = None
    attempt: int = Field(ge=0, description="How many leases in a row ran out, and the current one.")
    retries: int = Field(ge=0, description="How many times RetryWorkflow has continued it.")
    effects: int = Field(ge=0, description="The number of its effects.")
    messages: int = Field(ge=0, description="The number of its messages that it has not taken.")
    worker_id: Identifier | None = Field(default=None, description="The worker that executes it.")
    claimed_at: Instant | None = None
    blocked_by: str | None = Field(
        default=None, description="Why the function does not match the effects, if that happened three times in a row."
    )
    retry: RetryPolicy | None = None
    queued_behind: Identifier | None = Field(
        default=None,
        description="The workflow that is directly before it: in the queue of its concurrency key, or, if it is the "
        "first, the oldest that has the key. Only in replies to queries.",
    )
    code: FailureCode | None = Field(default=None, description="Why it failed.")
    step: EffectKey | None = Field(default=None, description="The step that failed.")
    reason: str | None = Field(
        default=None, description="The reason of the CancelWorkflow, or `replaced`: for another one with its key."
    )


class ListedWorkflow(WorkflowView):
    """A workflow in a list, with what it waits for, or why it failed."""

    has_workers: bool | None = Field(
        default=None,
        description="If it is `waiting`: whether a worker asked for its queue and type in the last minute.",
    )
    waits_for: list[EffectName] | None = Field(
        default=None, description="If it is `parked`: the first three messages for which it waits."
    )
    failure: ErrorView | None = Field(default=None, description="The error of its function. Its text is cut.")


class EffectDetail(Payload):
    """An effect of a workflow in a reply to a query."""

    key: EffectKey
    kind: EffectKind
    status: EffectStatus
    seq: int | None = Field(default=None, ge=1, description="The function got its result as the seq-th.")
    failures: int = Field(ge=0)
    due_at: Instant | None = Field(
        default=None, description="When a sleep ends, a message times out, or a failed step may start again."
    )
    result: Any = None
    error: ErrorView | None = None


class WorkflowDetail(Payload):
    """A workflow, its texts and one page of its effects: in the order of `seq`, then those without."""

    workflow: WorkflowView
    has_workers: bool = Field(description="Whether a worker asked for its queue and type in the last minute.")
    input: Any = None
    result: Any = None
    failure: ErrorView | None = Field(default=None, description="The error of its function.")
    effects: list[EffectDetail]
    cursor: str | None = None


class WorkflowPage(Payload):
    """A page of workflows. If `cursor` is set, send it with the same filters for the next page.

    A page with filters may have few workflows, or none, before the last one.
    """

    workflows: list[ListedWorkflow]
    cursor: str | None = None


class WorkflowCounts(Payload):
    """The number of workflows in each status. If `exact` is false, the service stopped counting at a limit."""

    counts: Mapping[WorkflowStatus, int]
    exact: bool


class WorkerView(Payload):
    """A worker in a reply."""

    worker_id: Identifier
    name: Identifier | None = None
    queue: EffectName
    types: list[EffectName]
    slots: int = Field(ge=1)
    first_seen_at: Instant
    seen_at: Instant
    online: bool = Field(description="Whether it was seen in the last minute.")


class WorkerPage(Payload):
    """A page of workers. If `cursor` is set, send it for the next page."""

    workers: list[WorkerView]
    cursor: str | None = None
