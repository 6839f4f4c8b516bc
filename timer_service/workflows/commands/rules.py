"""The rules of workflows: what each command does to a workflow. Pure functions without I/O and without a clock."""

from enum import StrEnum
from typing import NamedTuple

from timer_service.core.events.cause import cause_of
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.values.data import dump_data
from timer_service.core.values.message import Command
from timer_service.workflows.effect import Effect, Message, digest_of, size_of
from timer_service.workflows.keys import UNUSED, KeyUse, Turn, turn_of
from timer_service.workflows.messages import (
    CancelWorkflow,
    FailureCode,
    RetryWorkflow,
    SendToWorkflow,
    StartWorkflow,
    WorkflowPayload,
    WorkflowStatus,
)
from timer_service.workflows.protocol import EffectKind, EffectStatus
from timer_service.workflows.workflow import NEVER, Definition, Key, Texts, Workflow, unstarted

MOST_MESSAGES = 1000
"""How many messages may wait for one workflow."""
MOST_EARLY_MESSAGES = 100
"""How many messages may wait for one workflow that does not exist."""
MOST_MESSAGE_BYTES = 4 * 1024 * 1024
"""How many bytes of data the messages may have that wait for one workflow."""

_RAISED = frozenset({FailureCode.STEP_FAILED, FailureCode.WORKFLOW_ERROR})
"""The failures that a function raised when it got its last result. After the others it may have asked for more effects,
which a function without this result does not ask for."""


class Outcome(StrEnum):
    """The outcome of a command on a workflow."""

    STARTED = "started"
    QUEUED = "queued"
    SKIPPED_BUSY = "skipped_busy"
    EXISTS = "exists"
    SENT = "sent"
    KEPT = "kept"
    MAILBOX_FULL = "mailbox_full"
    CANCELLED = "cancelled"
    RETRIED = "retried"
    UNCHANGED = "unchanged"
    NOT_FOUND = "not_found"
    ALREADY_ENDED = "already_ended"
    OVER_QUOTA = OVER_QUOTA


class Facts(NamedTuple):
    """What a command needs to know in addition to its workflow."""

    use: KeyUse = UNUSED
    """How its concurrency key is used."""
    is_known: bool = False
    """Whether the workflow has a message with this message id."""
    is_awaited: bool = False
    """Whether the workflow waits for a message of this name."""
    last: Effect | None = None
    """The effect that the function got last."""


class Applied(NamedTuple):
    """The result of a command: the workflow after it, the outcome, and the rows it adds or changes."""

    workflow: Workflow
    outcome: Outcome
    message: Message | None = None
    """The message to store."""
    effect: Effect | None = None
    """The step that runs again."""


def key_of(command: Command) -> Key:
    """Return the key of the workflow that a command names."""
    payload = command.payload
    assert isinstance(payload, WorkflowPayload)  # noqa: S101 - the route admits no other payload
    return Key(payload.tenant_id, payload.workflow_id)


def apply(found: Workflow | None, command: Command, facts: Facts, now: int) -> Applied:
    """Apply a command to a workflow. contracts/outcomes.md has the outcomes."""
    before = found or unstarted(key_of(command), now)
    match command.payload:
        case StartWorkflow() as payload:
            return _start(before, command, payload, facts, now)
        case SendToWorkflow() as payload:
            return _send(before, command, payload, facts, now)
        case CancelWorkflow() as payload:
            return _cancel(before, command, payload, now)
        case payload:
            assert isinstance(payload, RetryWorkflow)  # noqa: S101 - the route admits no other payload
            return _retry(before, command, payload, facts, now)


def _start(before: Workflow, command: Command, payload: StartWorkflow, facts: Facts, now: int) -> Applied:
    """Start a workflow, unless it was started before. If it is skipped, it is stored as cancelled."""
    text = None if payload.input is None else dump_data(payload.input)
    digest = digest_of("\0".join((payload.workflow_type, payload.queue, text or "")))
    if before.definition is not None:
        return Applied(before, Outcome.UNCHANGED if digest == before.definition.digest else Outcome.EXISTS)
    definition = Definition(
        workflow_type=payload.workflow_type,
        queue=payload.queue,
        digest=digest,
        deadline_at=_instant(payload.deadline_at, payload.deadline_in, command, now),
        retry=None if payload.retry is None else payload.retry.model_dump_json(),
        concurrency=payload.concurrency,
    )
    # Not `now`: the keys of its steps depend on it, and stay the same if the command is applied again after a restore.
    created_at = command.stored_at or now
    named = before._replace(definition=definition, cause=cause_of(command), created_at=created_at)
    turn = turn_of(definition.concurrency, facts.use)
    if turn is Turn.SKIP:
        return Applied(named._replace(ended_at=now), Outcome.SKIPPED_BUSY)
    opened = named._replace(
        started_by=command.position, ended_at=None, input_bytes=size_of(text), texts=Texts(input=text)
    )
    asked_at = _asked_at(command, now)
    starts_at = max(_instant(payload.start_at, payload.start_in, command, now) or asked_at, asked_at)
    if turn is Turn.QUEUE:
        return Applied(opened.wait_for_key(facts.use.last_place + 1, starts_at, now), Outcome.QUEUED)
    return Applied(opened.wait_until(starts_at, counted_from=None), Outcome.STARTED)


def _instant(at: int | None, duration: int | None, command: Command, now: int) -> int | None:
    """Return the instant of two fields of which one may be set, or None. A duration counts from the command time."""
    return at if duration is None else (command.stored_at or now) + duration


def _asked_at(command: Command, now: int) -> int:
    """Return when a command was stored, or now if that is earlier. It is right also if the clock is ahead."""
    return min(command.stored_at or now, now)


def _send(before: Workflow, command: Command, payload: SendToWorkflow, facts: Facts, now: int) -> Applied:
    """Store a message of a workflow, and continue the workflow if it waits for this name.

    Before the start of the workflow, a few messages are kept for it.
    """
    if facts.is_known:
        return Applied(before, Outcome.UNCHANGED)
    exists = before.definition is not None
    if exists and not before.is_open:
        return Applied(before, Outcome.ALREADY_ENDED)
    size = 0 if payload.data is None else size_of(dump_data(payload.data))
    most = MOST_MESSAGES if exists else MOST_EARLY_MESSAGES
    if before.messages >= most or before.message_bytes + size > MOST_MESSAGE_BYTES:
        return Applied(before, Outcome.MAILBOX_FULL)
    message = Message(payload.name, command.position, command.stored_at or now, size)
    after = before._replace(messages=before.messages + 1, message_bytes=before.message_bytes + size)
    if not exists:
        return Applied(after._replace(ended_at=now), Outcome.KEPT, message)
    if facts.is_awaited and _is_idle(before, now):
        after = after.wait_until(_asked_at(command, now), counted_from=None)
    return Applied(after, Outcome.SENT, message)


def _is_idle(workflow: Workflow, now: int) -> bool:
    """Return whether a workflow waits longer than until `now`, and not because it is blocked."""
    is_later = workflow.status is WorkflowStatus.WAITING and workflow.due_at is not None and workflow.due_at > now
    return workflow.status is WorkflowStatus.PARKED or (is_later and not workflow.blocks)


def _cancel(before: Workflow, command: Command, payload: CancelWorkflow, now: int) -> Applied:
    """Cancel an open workflow. If none was started, remember the cancel: slots of older schedules do not start it."""
    if before.definition is None:
        return Applied(before._replace(cancelled_by=command.position, ended_at=now), Outcome.NOT_FOUND)
    if before.started_by == NEVER:  # its start was skipped, but a slot may try again
        return Applied(before._replace(cancelled_by=command.position), Outcome.UNCHANGED)
    if before.status is WorkflowStatus.CANCELLED:
        return Applied(before, Outcome.UNCHANGED)
    if not before.is_open:
        return Applied(before, Outcome.ALREADY_ENDED)
    return Applied(before.end(WorkflowStatus.CANCELLED, now)._replace(reason=payload.reason), Outcome.CANCELLED)


def _retry(before: Workflow, command: Command, payload: RetryWorkflow, facts: Facts, now: int) -> Applied:
    """Continue a failed workflow, unless it is skipped or some of its rows are deleted."""
    if before.definition is None or before.is_deleting:
        return Applied(before, Outcome.NOT_FOUND)
    if before.is_open:
        return Applied(before, Outcome.UNCHANGED)
    if before.status is not WorkflowStatus.FAILED:
        return Applied(before, Outcome.ALREADY_ENDED)
    turn = turn_of(before.definition.concurrency, facts.use)
    if turn is Turn.SKIP:
        return Applied(before, Outcome.SKIPPED_BUSY)
    deadline_at = _instant(None, payload.deadline_in, command, now)
    definition = before.definition._replace(deadline_at=deadline_at)
    asked_at = _asked_at(command, now)
    opened, step = _continue(before, definition, facts.last, asked_at)
    if turn is Turn.QUEUE:
        return Applied(opened.wait_for_key(facts.use.last_place + 1, asked_at, now), Outcome.QUEUED, effect=step)
    return Applied(opened.wait_until(asked_at, counted_from=None), Outcome.RETRIED, effect=step)


def _continue(
    workflow: Workflow, definition: Definition, last: Effect | None, at: int
) -> tuple[Workflow, Effect | None]:
    """Return an open workflow for a failed one. If its function raised an error, also the step that runs again."""
    opened = workflow._replace(
        definition=definition,
        retries=workflow.retries + 1,
        attempt=0,
        renewed=0,
        blocks=0,
        last_error=None,
        failure_code=None,
        failed_step=None,
        ended_at=None,
    )
    if last is None or last.kind is not EffectKind.STEP or last.status is not EffectStatus.FAILED:
        return opened, None
    if workflow.failure_code not in _RAISED:
        return opened, None
    step = last._replace(status=EffectStatus.OPEN, seq=None, failures=0, due_at=at, error=None, size=0)
    return opened._replace(seen=opened.seen - 1, effect_bytes=opened.effect_bytes - last.size), step
