"""Starts the workflows of schedules, in the transaction that fires their slots. See docs/decisions/0035.

The workflows and the holders of concurrency keys are looked up without locks. So only the insert, and workflows that
are not started or were skipped, can wait for another transaction. If another instance inserts one of them in between,
the transaction runs again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from timer_service.core.limits.quotas import Excess, Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.service.workflow_start import Started, StartResult, WorkflowStart
from timer_service.workflows import store
from timer_service.workflows.commands.handler import LOOP
from timer_service.workflows.effect import digest_of, size_of
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
        return self.result in {StartResult.STARTED, StartResult.BUSY}


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
    wanted = {each for start in starts if (each := _concurrency(start)) is not None}
    taken = set(await store.find_holders(tx, wanted))
    admission = quotas.admission(tx, now)
    decisions: dict[Key, Decision] = {}
    for key, start in first.items():
        before = known.get(key)
        decision = decide(before, start, now, is_busy=_concurrency(start) in taken)
        if decision.result is StartResult.STARTED and admission is not None:
            excess = await admission.exceeds(start.tenant_id, growth(before, decision.workflow))
            if excess is not None:
                decision = Decision(StartResult.OVER_QUOTA, decision.workflow, excess)
        if decision.result is StartResult.STARTED and (name := _concurrency(start)) is not None:
            taken.add(name)
        decisions[key] = decision
    await store.save(tx, known, {key: each.workflow for key, each in decisions.items() if each.is_stored})
    return [_started(decisions[_key(start)]) for start in starts]


def decide(found: Workflow | None, start: WorkflowStart, now: int, *, is_busy: bool) -> Decision:
    """Decide whether a workflow is started. `is_busy`: another open workflow has its concurrency key. Pure."""
    before = found or unstarted(_key(start), now)
    definition = _definition(start, now)
    if before.definition is not None:
        if before.definition.digest != definition.digest:
            return Decision(StartResult.EXISTS, before)
        if before.started_by != NEVER:
            return Decision(StartResult.UNCHANGED, before)
        # a start that was skipped
        if is_busy or not start.retries_skipped or before.is_deleting:
            return Decision(StartResult.BUSY, before)
    if start.position < before.cancelled_by:
        return Decision(StartResult.CANCELLED, before)
    created_at = start.created_at or now
    named = before._replace(definition=definition, cause=start.cause, created_at=created_at)
    if is_busy:
        return Decision(StartResult.BUSY, named._replace(ended_at=now))
    opened = named._replace(
        started_by=start.position, ended_at=None, input_bytes=size_of(start.input), texts=Texts(input=start.input)
    )
    return Decision(StartResult.STARTED, opened.wait_until(now, counted_from=now))


def _definition(start: WorkflowStart, now: int) -> Definition:
    spec = start.spec
    return Definition(
        workflow_type=spec.workflow_type,
        queue=spec.queue,
        digest=digest_of("\0".join((spec.workflow_type, spec.queue, start.input or ""))),
        deadline_at=None if spec.deadline_in is None else now + spec.deadline_in,
        retry=spec.retry,
        concurrency_key=spec.concurrency_key,
    )


def _started(decision: Decision) -> Started:
    """Return the result for the schedules, with the lane and the loop that have work because of it."""
    if decision.result is not StartResult.STARTED:
        return Started(decision.result, excess=decision.excess)
    definition = decision.workflow.definition
    has_deadline = definition is not None and definition.deadline_at is not None
    return Started(decision.result, decision.workflow.lane, LOOP if has_deadline else None)


def _key(start: WorkflowStart) -> Key:
    return Key(start.tenant_id, start.workflow_id)


def _concurrency(start: WorkflowStart) -> tuple[str, str] | None:
    """Return the tenant and the concurrency key of a start; None without one."""
    name = start.spec.concurrency_key
    return None if name is None else (start.tenant_id, name)
