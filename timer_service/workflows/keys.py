"""Concurrency keys: which workflow starts, waits for its turn, or ends for another one. Pure.

A key of a tenant is used by the workflows that have started with it and have not ended, and by those that are queued.
Each queued workflow has a place. A workflow that ends, or is queued to replace another one, sets the instant from which
`key_worker` looks at the key. See docs/decisions/0111.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from timer_service.core.service.workflow_start import Concurrency, WhenBusy
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.workflow import Key, Workflow

KEY_LOOP = "workflow-keys"
"""The loop of the worker that starts queued workflows."""
MOST_TURNS = 10
"""How many queued workflows of one key a transaction starts, and how many it cancels for another one."""
REPLACED = "replaced"
"""The reason of a workflow that was cancelled for another one with its key."""


class KeyName(NamedTuple):
    """A concurrency key of a tenant."""

    tenant_id: str
    concurrency_key: str


class KeyUse(NamedTuple):
    """How many workflows use a concurrency key, counted up to a limit."""

    started: int = 0
    queued: int = 0
    last_place: int = 0
    """The place of the queued workflow that is last."""

    def after(self, before: Workflow | None, after: Workflow) -> "KeyUse":
        """Return the use of the key of `after`, when a change of this workflow is made."""
        was_started, was_queued = (False, False) if before is None else (_is_started(before), _is_queued(before))
        return KeyUse(
            self.started + _is_started(after) - was_started,
            self.queued + _is_queued(after) - was_queued,
            max(self.last_place, after.key_place or 0),
        )


UNUSED = KeyUse()


class Turn(StrEnum):
    """What becomes of a workflow that starts or continues."""

    START = "start"
    QUEUE = "queue"
    SKIP = "skip"


def turn_of(concurrency: Concurrency | None, use: KeyUse) -> Turn:
    """Decide about a workflow that starts or continues. It never starts before a queued one."""
    if concurrency is None or (not use.queued and use.started < concurrency.limit):
        return Turn.START
    return Turn.SKIP if concurrency.when_busy is WhenBusy.SKIP else Turn.QUEUE


class Queued(NamedTuple):
    """A queued workflow."""

    key: Key
    concurrency: Concurrency


class Turns(NamedTuple):
    """What is to be done about a key."""

    starts: Sequence[Key] = ()
    replaced: Sequence[Key] = ()
    """They end for another one."""
    has_more: bool = False
    """Whether the key may have more to do: a transaction changes `MOST_TURNS` workflows."""


def next_turns(
    started: int, oldest: Sequence[Key], queued: Sequence[Queued], replacing: Sequence[Queued] = ()
) -> Turns:
    """Decide who starts and who ends, when a key may be free.

    `started`: how many workflows have the key, and `oldest`: the oldest of these. `queued`: the first that wait, in
    order. `replacing`: those of them that replace others, in order; only the newest stays. It takes the place of the
    oldest workflow, and starts before those that wait.
    """
    replaced = [each.key for each in replacing[:-1]]
    starts: list[Key] = []
    for newest in replacing[-1:]:
        too_many = max(started - newest.concurrency.limit + 1, 0)
        ending = oldest[: min(too_many, MOST_TURNS)]
        replaced += ending
        if len(ending) < too_many:
            return Turns(starts, replaced, has_more=True)
        started += 1 - too_many
        starts.append(newest.key)
    waiting = [each for each in queued if each.key not in {*starts, *replaced}]
    for each in waiting:
        if started >= each.concurrency.limit:
            return Turns(starts, replaced)
        starts.append(each.key)
        started += 1
    return Turns(starts, replaced, has_more=len(queued) >= MOST_TURNS)


def frees_key(workflows: Iterable[Workflow]) -> bool:
    """Return whether a concurrency key is to be looked at because of one of these workflows."""
    return any(each.key_due_at is not None for each in workflows)


def name_of(workflow: Workflow | None) -> KeyName | None:
    """Return the concurrency key of a workflow; None without one."""
    if workflow is None or workflow.definition is None or workflow.definition.concurrency is None:
        return None
    return KeyName(workflow.key.tenant_id, workflow.definition.concurrency.key)


def _is_started(workflow: Workflow) -> bool:
    return workflow.is_open and not _is_queued(workflow)


def _is_queued(workflow: Workflow) -> bool:
    return workflow.status is WorkflowStatus.QUEUED
