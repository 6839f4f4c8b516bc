"""The events of workflows, from comparing a workflow before and after. A repeated event has the same id."""

import hashlib
from collections.abc import Mapping

from timer_service.core.values.instant import format_instant
from timer_service.core.values.message import Event
from timer_service.core.values.stored_json import RawJson, omit_none, read_stored, write_object
from timer_service.workflows.messages import (
    WorkflowBlocked,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowStatus,
)
from timer_service.workflows.workflow import NEVER, Key, Workflow


def events_of(before: Mapping[Key, Workflow], after: Mapping[Key, Workflow], now: int) -> list[Event]:
    """Return the events of the workflows that changed: their end, or that they are blocked now."""
    return [event for key, workflow in after.items() for event in _events(before.get(key), workflow, now)]


def _events(before: Workflow | None, after: Workflow, now: int) -> list[Event]:
    """Return the events of one workflow. A workflow that was never started, or whose start was skipped, has none."""
    if after.definition is None or after.started_by == NEVER:
        return []
    if after.is_open:
        if before is None or before.times_blocked == after.times_blocked:
            return []
        payload = write_object({**_names(after), "error": after.last_error or ""}, {})
        return [_event(WorkflowBlocked.type, after, after.times_blocked, payload, now)]
    if before is not None and not before.is_open and before.started_by != NEVER and before.retries == after.retries:
        return []  # it had ended before
    return [_end_event(after, now)]


def _end_event(workflow: Workflow, now: int) -> Event:
    """Return the event about the end of a workflow. A later end, after a RetryWorkflow, has another id."""
    fields = {
        **_names(workflow),
        "startedAt": format_instant(workflow.created_at),
        "endedAt": format_instant(workflow.ended_at or now),
    }
    match workflow.status:
        case WorkflowStatus.COMPLETED:
            raw = {"result": read_stored(workflow.texts.result)}
            return _event(WorkflowCompleted.type, workflow, workflow.retries, write_object(fields, raw), now)
        case WorkflowStatus.FAILED:
            more = omit_none(code=workflow.failure_code, step=workflow.failed_step)
            payload = write_object({**fields, **more}, {"error": read_stored(workflow.texts.error)})
            return _event(WorkflowFailed.type, workflow, workflow.retries, payload, now)
        case _:
            payload = write_object({**fields, **omit_none(reason=workflow.reason)}, {})
            return _event(WorkflowCancelled.type, workflow, workflow.retries, payload, now)


def _event(message_type: str, workflow: Workflow, number: int, payload: RawJson, now: int) -> Event:
    """Return an event. `number` makes its id differ from those of earlier events of this type about the workflow."""
    about = (*workflow.key, *workflow.started_by, message_type, number)
    event_id = hashlib.blake2b("\0".join(map(str, about)).encode(), digest_size=16).hexdigest()
    command_id, correlation_id, trace = workflow.cause
    return Event(event_id, message_type, workflow.key.tenant_id, payload, now, correlation_id, command_id, trace)


def _names(workflow: Workflow) -> dict[str, str]:
    """Return the fields with which each event names its workflow."""
    assert workflow.definition is not None  # noqa: S101 - only started ones have events
    tenant_id, workflow_id = workflow.key
    return {"tenantId": tenant_id, "workflowId": workflow_id, "type": workflow.definition.workflow_type}
