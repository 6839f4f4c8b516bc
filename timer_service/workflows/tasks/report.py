"""The rules of reports and renewals: what a worker's request does to its task. Pure functions without I/O."""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timer_service.core.values.data import dump_data
from timer_service.workflows.effect import (
    ConflictingReportError,
    Due,
    Effect,
    EffectKey,
    Effects,
    Inbox,
    begin_wait,
    end_attempt,
    end_waits,
    next_due,
    size_of,
)
from timer_service.workflows.messages import MAX_EFFECTS, FailureCode, WorkflowStatus
from timer_service.workflows.protocol import (
    Complete,
    Continue,
    EffectKind,
    EffectStatus,
    Fail,
    NextAttempt,
    Park,
    Release,
    ReleaseReason,
    Report,
    ReportOutcome,
    Seen,
)
from timer_service.workflows.workflow import Texts, Workflow

MOST_EFFECT_BYTES = 8 * 1024 * 1024
"""How many bytes the results of one workflow may have."""
UNDECIDED_MS = 250
"""How long a workflow waits whose timeout cannot be decided yet."""


class TaskState(NamedTuple):
    """A workflow, its effects that the function has not got and those that a report names, and its next messages."""

    workflow: Workflow
    effects: Effects
    inbox: Inbox


class Decision(NamedTuple):
    """The task after a report, the outcome, and when the next attempts of steps may start."""

    task: TaskState
    outcome: ReportOutcome
    failed_steps: Sequence[NextAttempt] = ()

    @property
    def shows_waits(self) -> bool:
        """Whether the reply names the waits that are over."""
        return self.outcome in {ReportOutcome.RECORDED, ReportOutcome.RESUMED}


class Rules(NamedTuple):
    """What the decisions about one request depend on, in addition to the request and its task."""

    now: int
    rng: random.Random
    may_time_out: bool = True
    """Whether all commands that can have been sent before a timeout have been handled."""


def is_held(workflow: Workflow | None, token: str) -> bool:
    """Return whether a token is the current one of a workflow."""
    return workflow is not None and workflow.hold is not None and workflow.hold.token == token


def refuse(workflow: Workflow, token: str) -> ReportOutcome:
    """Return the outcome of a report whose token is not current: it repeats the last report, or its task is lost."""
    return ReportOutcome.UNCHANGED if workflow.settled_by == token else ReportOutcome.LOST


def apply(task: TaskState, report: Report, rules: Rules) -> Decision:
    """Apply a report whose token is current. contracts/README.md has the outcomes."""
    hold = task.workflow.hold
    assert hold is not None  # noqa: S101 - the token is current
    if report.number < hold.report_number:  # a copy that comes late: its worker is ahead of it
        return Decision(task, ReportOutcome.UNCHANGED)
    counted = task._replace(workflow=task.workflow.count_report(report.number))
    try:
        recorded = _mark_seen(end_waits_over(_record(counted, report, rules), rules), report.seen)
    except ConflictingReportError:
        return Decision(task, ReportOutcome.CONFLICT)
    if recorded.workflow.effects > MAX_EFFECTS or recorded.workflow.effect_bytes > MOST_EFFECT_BYTES:
        return _end(task, report, task.workflow.fail(FailureCode.TOO_LARGE, rules.now), ReportOutcome.FAILED)
    decision = _then(recorded, report, rules)
    shown = [EffectKey.parse(each.key) for each in report.steps if each.error is not None]
    if decision.outcome is ReportOutcome.RESUMED:  # by the clock of the worker, it may be too early for this step
        shown += _first_to_start(recorded.effects.values(), rules.now)
    steps = [recorded.effects[key] for key in dict.fromkeys(shown)]
    return decision._replace(failed_steps=[_next_attempt(each, rules.now) for each in steps])


def renew(task: TaskState, rules: Rules) -> TaskState:
    """Return a task with a new lease, after the waits that are over have ended. Its worker has run the function."""
    after = end_waits_over(task, rules)
    workflow = after.workflow.renew(rules.now)
    return after._replace(workflow=workflow._replace(renewed=workflow.attempt))


def end_waits_over(task: TaskState, rules: Rules) -> TaskState:
    """Return a task after every wait that is over has ended. The messages that became results no longer wait."""
    effects, inbox = end_waits(task.effects, task.inbox, rules.now, may_time_out=rules.may_time_out)
    if effects is task.effects:  # no wait is open
        return task
    workflow = _count(task.workflow, task.effects, effects)
    taken = [each.taken for key, each in effects.items() if each.taken is not None and each != task.effects[key]]
    messages = workflow.messages - len(taken)
    message_bytes = workflow.message_bytes - sum(each.size for each in taken)
    return TaskState(workflow._replace(messages=messages, message_bytes=message_bytes), effects, inbox)


def is_undecided(effect: Effect, now: int) -> bool:
    """Return whether an open wait for a message has reached its timeout, which cannot be decided yet."""
    is_message = effect.kind is EffectKind.MESSAGE and effect.status is EffectStatus.OPEN
    return is_message and effect.due_at is not None and effect.due_at <= now


def _record(task: TaskState, report: Report, rules: Rules) -> TaskState:
    """Return a task with the attempts that ended and the waits that began."""
    if not report.steps and not report.waits:
        return task
    effects = dict(task.effects)
    definition = task.workflow.definition
    assert definition is not None  # noqa: S101 - only a started one is held
    policy = definition.policy
    for step in report.steps:
        key = EffectKey.parse(step.key)
        effects[key] = end_attempt(effects.get(key), step, policy, rules.now, rules.rng)
    for wait in report.waits:
        key = EffectKey.parse(wait.key)
        effects[key] = begin_wait(effects.get(key), wait, rules.now)
    return task._replace(workflow=_count(task.workflow, task.effects, effects), effects=effects)


def _count(workflow: Workflow, before: Effects, after: Effects) -> Workflow:
    """Return a workflow that counts its new effects, and the bytes that its effects have more."""
    sizes = sum(each.size for each in after.values()) - sum(each.size for each in before.values())
    effects = workflow.effects + len(after) - len(before)
    return workflow._replace(effects=effects, effect_bytes=workflow.effect_bytes + sizes)


def _mark_seen(task: TaskState, seen: Sequence[Seen]) -> TaskState:
    """Return a task with the numbers under which the function got results.

    Raises `ConflictingReportError` if a number is used or leaves a gap, or if the function cannot have got a result.
    """
    if not seen:
        return task
    effects, last = dict(task.effects), task.workflow.seen
    for each in sorted(seen, key=lambda each: each.seq):
        effect = effects.get(EffectKey.parse(each.key))
        if effect is None or effect.status is EffectStatus.OPEN:
            raise ConflictingReportError
        if effect.seq == each.seq:  # a repeated report
            continue
        if effect.seq is not None or each.seq != last + 1:
            raise ConflictingReportError
        effects[effect.key] = effect._replace(seq=each.seq)
        last = each.seq
    return task._replace(workflow=task.workflow._replace(seen=last), effects=effects)


def _then(task: TaskState, report: Report, rules: Rules) -> Decision:
    """Apply the end of a report: the task goes on, is parked or released, or the workflow ends."""
    now, workflow = rules.now, task.workflow
    match report.then:
        case Continue():
            return _go_on(task, ReportOutcome.RECORDED, now)
        case Park():
            return _park(task, report.token, rules)
        case Complete() as then:
            result = None if then.result is None else dump_data(then.result)
            completed = workflow.end(WorkflowStatus.COMPLETED, now, Texts(result=result))
            counted = completed._replace(effect_bytes=completed.effect_bytes + size_of(result))
            return _end(task, report, counted, ReportOutcome.COMPLETED)
        case Fail() as then:
            code = FailureCode.WORKFLOW_ERROR if then.step is None else FailureCode.STEP_FAILED
            failed = workflow.fail(code, now, step=then.step, error=then.error.model_dump_json())
            return _end(task, report, failed, ReportOutcome.FAILED)
        case Release() as then:
            attempt = max(workflow.attempt - 1, 0)  # the claim does not count: the task was not attempted
            uncounted = workflow._replace(
                attempt=attempt, renewed=min(workflow.renewed, attempt), settled_by=report.token
            )
            if then.reason is ReleaseReason.NON_DETERMINISTIC:
                waiting = uncounted.block(then.error, now)
            else:
                waiting = uncounted.wait_until(now, counted_from=now)
            return Decision(task._replace(workflow=waiting), ReportOutcome.RELEASED)


def _go_on(task: TaskState, outcome: ReportOutcome, now: int) -> Decision:
    """Return the decision that a task goes on with its worker, with a new lease."""
    renewed = _progressed(task.workflow).renew(now)
    return Decision(task._replace(workflow=renewed), outcome)


def _park(task: TaskState, token: str, rules: Rules) -> Decision:
    """Park a task, or let its worker go on if a wait is over or a step may start."""
    effects = task.effects.values()
    if any(each.is_over or _may_start(each, rules.now) for each in effects):
        return _go_on(task, ReportOutcome.RESUMED, rules.now)
    workflow = _progressed(task.workflow)._replace(settled_by=token)
    if (due := _due(task, rules)) is None:
        parked = workflow.park()
    else:
        parked = workflow.wait_until(due.at, counted_from=due.counted_from)
    return Decision(task._replace(workflow=parked), ReportOutcome.PARKED)


def _due(task: TaskState, rules: Rules) -> Due | None:
    """Return when a parked task has something to do; None if it waits for a message only."""
    now, effects = rules.now, task.effects.values()
    if any(each.status is not EffectStatus.OPEN and each.seq is None for each in effects):
        return Due(now, now)  # a result that the function did not get: the next worker delivers it
    if not any(each.status is EffectStatus.OPEN for each in effects):
        return Due(now, now)  # nothing would ever continue it
    due = next_due(effects)
    if due is not None and due.at <= now:
        return Due(now + UNDECIDED_MS, now)  # a timeout that cannot be decided yet
    return due


def _first_to_start(effects: Iterable[Effect], now: int) -> list[EffectKey]:
    """Return the key of the failed step that may start again for longest, or none. A reply has no room for all."""
    ready = [each for each in effects if _may_start(each, now)]
    return [min(ready, key=lambda each: (each.due_at or 0, each.key)).key] if ready else []


def _may_start(effect: Effect, now: int) -> bool:
    """Return whether an effect is a failed step that may start again now."""
    is_open_step = effect.kind is EffectKind.STEP and effect.status is EffectStatus.OPEN
    return is_open_step and (effect.due_at is None or effect.due_at <= now)


def _progressed(workflow: Workflow) -> Workflow:
    """Return a workflow whose worker has reported: it neither crashes nor is blocked."""
    return workflow._replace(attempt=0, renewed=0, blocks=0, last_error=None)


def _end(task: TaskState, report: Report, ended: Workflow, outcome: ReportOutcome) -> Decision:
    """Return the decision of a report that ends its workflow."""
    settled = _progressed(ended)._replace(settled_by=report.token)
    return Decision(task._replace(workflow=settled), outcome)


def _next_attempt(step: Effect, now: int) -> NextAttempt:
    """Return when the next attempt of a step may start: never if the step has ended."""
    start_in = max((step.due_at or now) - now, 0) if step.status is EffectStatus.OPEN else None
    return NextAttempt(key=step.key.text, start_in_ms=start_in)
