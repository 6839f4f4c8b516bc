"""Starts the workflows of schedules, in the transaction that fires their slots. See docs/decisions/0035.

The workflows are looked up without locks. So only the insert, the concurrency keys, and workflows that are not started
or were skipped, can wait for another transaction. If another instance inserts one of them in between, the transaction
runs again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, StartResult, WorkflowStart
from timer_service.workflows import store
from timer_service.workflows.commands.handler import LOOP
from timer_service.workflows.effect import digest_of, size_of
from timer_service.workflows.keys import KEY_LOOP, UNUSED, KeyName, KeyUse, Turn, turn_of
from timer_service.workflows.store import growth
from timer_service.workflows.workflow import NEVER, Definition, Key, Texts, Workflow, unstarted


class Decision(NamedTuple):
    """The result of a start, and the workflow that it leaves."""

    result: StartResult
    workflow: Workflow
    """Afterwards."""
    excess: Excess | None = None
    """The limit that it would exceed."""

    @property
    def is_stored(self) -> bool:
        """Whether the start changes the workflow."""
        return self.opens or self.result is StartResult.BUSY

    @property
    def opens(self) -> bool:
        """Whether the workflow is open because of the start."""
        return self.result in {StartResult.STARTED, StartResult.QUEUED}


async def start_workflows(
    tx: Transaction, starts: Sequence[WorkflowStart], now: int, /, *, quotas: Quotas
) -> Sequence[Started]:
    """Start workflows in order; see `StartWorkflows`."""
    first: dict[Key, WorkflowStart] = {}
    for start in starts:
        first.setdefault(_key(start), start)  # another start of the same workflow has the same result
    found = await store.find(tx, first)
    may_start = {key for key, each in found.items() if each.definition is None or each.started_by == NEVER}
    locked = await store.load(tx, may_start)
    known = {key: each for key, each in found.items() if key not in may_start} | locked
    wanted = {each for start in starts if (each := _key_name(start)) is not None}
    uses = await store.lock_uses(tx, wanted, changes=len(starts))
    admission = quotas.admission(tx, now)
    decisions: dict[Key, Decision] = {}
    for key, start in first.items():
        before, name = known.get(key), _key_name(start)
        decision = decide(before, start, now, UNUSED if name is None else uses[name])
        if decision.opens and admission is not None:
            excess = await admission.exceeds(start.tenant_id, growth(before, decision.workflow))
            if excess is not None:
                decision = Decision(StartResult.OVER_QUOTA, decision.workflow, excess)
        if decision.opens and name is not None:
            uses[name] = uses[name].after(before, decision.workflow)
        decisions[key] = decision
    await store.save(tx, known, {key: each.workflow for key, each in decisions.items() if each.is_stored})
    return [_started(decisions[_key(start)]) for start in starts]


def decide(found: Workflow | None, start: WorkflowStart, now: int, use: KeyUse) -> Decision:
    """Decide whether a workflow is started. `use`: how its concurrency key is used. Pure."""
    before = found or unstarted(_key(start), now)
    definition = _definition(start, now)
    turn = turn_of(definition.concurrency, use)
    if before.definition is not None:
        if before.definition.digest != definition.digest:
            return Decision(StartResult.EXISTS, before)
        if before.started_by != NEVER:
            return Decision(StartResult.UNCHANGED, before)
        # a start that was skipped
        if turn is Turn.SKIP or not start.retries_skipped or before.is_deleting:
            return Decision(StartResult.BUSY, before)
    if start.position < before.cancelled_by:
        return Decision(StartResult.CANCELLED, before)
    created_at = start.created_at or now
    named = before._replace(definition=definition, cause=start.cause, created_at=created_at)
    if turn is Turn.SKIP:
        return Decision(StartResult.BUSY, named._replace(ended_at=now))
    opened = named._replace(
        started_by=start.position, ended_at=None, input_bytes=size_of(start.input), texts=Texts(input=start.input)
    )
    if turn is Turn.QUEUE:
        return Decision(StartResult.QUEUED, opened.wait_for_key(use.last_place + 1, now, now))
    return Decision(StartResult.STARTED, opened.wait_until(now, counted_from=now))


def _definition(start: WorkflowStart, now: int) -> Definition:
    spec = start.spec
    return Definition(
        workflow_type=spec.workflow_type,
        queue=spec.queue,
        digest=digest_of("\0".join((spec.workflow_type, spec.queue, start.input or ""))),
        deadline_at=None if spec.deadline_in is None else now + spec.deadline_in,
        retry=spec.retry,
        concurrency=spec.concurrency,
    )


def _started(decision: Decision) -> Started:
    """Return the result for the schedules, with the lane and the loop that have work because of it."""
    if not decision.opens:
        return Started(decision.result, excess=decision.excess)
    workflow = decision.workflow
    if workflow.key_due_at is not None:
        return Started(decision.result, loop=KEY_LOOP)
    lane = workflow.lane if decision.result is StartResult.STARTED else None
    has_deadline = workflow.definition is not None and workflow.definition.deadline_at is not None
    return Started(decision.result, lane, LOOP if has_deadline else None)


def _key(start: WorkflowStart) -> Key:
    return Key(start.tenant_id, start.workflow_id)


def _key_name(start: WorkflowStart) -> KeyName | None:
    """Return the concurrency key of a start; None without one."""
    concurrency = start.spec.concurrency
    return None if concurrency is None else KeyName(start.tenant_id, concurrency.key)
