"""Makes tasks of claimed workflows, in the transaction of the claim."""

import random
from collections.abc import Callable, Sequence
from functools import partial

from timer_service.core.ports.database import Row, Transaction
from timer_service.core.values.instant import format_instant, format_optional
from timer_service.core.values.stored_json import (
    RawJson,
    check_stored,
    omit_none,
    read_stored,
    write_list,
    write_object,
)
from timer_service.workflows import effect_store, store
from timer_service.workflows.effect_store import BYTES_PER_EFFECT, Cursor
from timer_service.workflows.messages import FailureCode
from timer_service.workflows.protocol import INLINE_EFFECTS_BYTES
from timer_service.workflows.tasks import report, task_store
from timer_service.workflows.tasks.report import UNDECIDED_MS, Rules, TaskState, is_undecided
from timer_service.workflows.tasks.task_store import Wanted
from timer_service.workflows.workflow import DEFAULT_RETRY, Key, Workflow, delay_after, has_crashed

_BYTES_PER_TASK = 1000
_BYTES_PER_EFFECT = 400
"""About how many bytes an effect has in a task with its name, in addition to its texts."""
_DEFAULT_RETRY = DEFAULT_RETRY.model_dump_json()


def task_bytes(row: Row) -> int:
    """Return about how many bytes the task of a claimed row will have, at most. Messages may become results."""
    effects = row["effect_bytes"] + row["message_bytes"] + row["effects"] * _BYTES_PER_EFFECT
    return int(_BYTES_PER_TASK + row["input_bytes"] + min(effects, 2 * INLINE_EFFECTS_BYTES))


async def read_tasks(
    tx: Transaction,
    rows: Sequence[Row],
    now: int,
    *,
    max_attempts: int,
    may_time_out: bool,
    wake: Callable[[str], None],
) -> list[RawJson | None]:
    """Return the tasks of rows that this transaction has claimed. None: the row is not to be sent, nor claimed now.

    A workflow that has lost too many leases in a row fails instead. A workflow whose timeout cannot be decided yet is
    not sent: it is available again in 250 ms.
    """
    claimed = [store.read_workflow(row) for row in rows]
    workflows = {each.key: each for each in claimed}
    before = await task_store.load(tx, workflows, dict.fromkeys(workflows, Wanted()))
    rules = Rules(now, random.Random(0), may_time_out)  # noqa: S311 - nothing of a claim is random
    after = {key: _admit(task, rules, max_attempts) for key, task in before.items()}
    for loop in await task_store.save(tx, before, after, now):
        tx.on_commit(partial(wake, loop))
    views = await _views(tx, [task.workflow for task in after.values() if task.workflow.hold is not None], now)
    return [views.get(each.key) for each in claimed]


def _admit(task: TaskState, rules: Rules, max_attempts: int) -> TaskState:
    """Return a claimed task as it is sent to the worker: its lease, and the waits that are over. Or end its claim.

    After a few lost leases, a delay follows the lease, so that the workflow does not end one worker after another.
    """
    workflow = task.workflow
    if has_crashed(workflow, max_attempts):
        return task._replace(workflow=workflow.fail(FailureCode.CRASHED, rules.now))
    admitted = report.end_waits_over(task, rules)
    if any(is_undecided(each, rules.now) for each in admitted.effects.values()):
        waiting = workflow.wait_until(rules.now + UNDECIDED_MS, counted_from=rules.now)
        return task._replace(workflow=waiting._replace(attempt=workflow.attempt - 1))
    if delay := delay_after(workflow.attempt):
        end = (workflow.available_at or rules.now) + delay
        return admitted._replace(workflow=admitted.workflow._replace(available_at=end))
    return admitted


async def _views(tx: Transaction, workflows: Sequence[Workflow], now: int) -> dict[Key, RawJson]:
    """Return the tasks of workflows. One with large effects has the first page of them."""
    texts = await store.find_texts(tx, [each.key for each in workflows if each.input_bytes])
    small = [each.key for each in workflows if each.effects and not _is_large(each)]
    found = await effect_store.find_all(tx, small)
    views = {}
    for workflow in workflows:
        if _is_large(workflow):
            effects = await task_store.effects_page(tx, workflow.key, Cursor(), now, most_bytes=INLINE_EFFECTS_BYTES)
        else:
            shown = [task_store.effect_view(each, now) for each in found.get(workflow.key, ())]
            effects = write_object({}, {"effects": write_list(shown)})
        stored = texts[workflow.key].input if workflow.key in texts else None
        views[workflow.key] = _view(workflow, stored, effects)
    return views


def _is_large(workflow: Workflow) -> bool:
    """Return whether the effects of a workflow may have more bytes than a task may have of them."""
    return workflow.effect_bytes + workflow.effects * BYTES_PER_EFFECT > INLINE_EFFECTS_BYTES


def _view(workflow: Workflow, stored_input: str | None, effects: RawJson) -> RawJson:
    """Return the fields of a task, and then those of `effects`."""
    definition, hold = workflow.definition, workflow.hold
    assert definition is not None  # noqa: S101 - only started ones are claimed
    assert hold is not None  # noqa: S101 - the row is claimed
    fields = omit_none(
        workflowId=workflow.key.workflow_id,
        type=definition.workflow_type,
        token=hold.token,
        attempt=workflow.attempt,
        startedAt=format_instant(workflow.created_at),
        deadlineAt=format_optional(definition.deadline_at),
    )
    raw = {"input": read_stored(stored_input), "retry": RawJson(check_stored(definition.retry or _DEFAULT_RETRY))}
    return RawJson(f"{write_object(fields, raw).text[:-1]},{effects.text[1:]}")
