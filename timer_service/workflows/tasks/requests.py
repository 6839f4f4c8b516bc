"""Applies the requests of workers about their tasks: reports, renewals and get-effects, for many tenants at once.

All of them run in one transaction, which locks the workflows that they name in the order of their keys. Requests are
applied in order, so the same report twice in one batch has one effect.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from timer_service.core.intake.route import Lane
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import Turns
from timer_service.core.requests.requests import Answer, Asked, RequestRoute
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.paging import PAGE_BYTES
from timer_service.core.values.stored_json import RawJson, write_list, write_object
from timer_service.workflows import effect_store, protocol, store
from timer_service.workflows.effect import EffectKey
from timer_service.workflows.protocol import (
    Complete,
    EffectKind,
    EffectsPage,
    Fail,
    GetEffects,
    HeldTask,
    PollTasks,
    RenewReply,
    RenewTasks,
    Report,
    ReportOutcome,
    ReportsReply,
    ReportTasks,
)
from timer_service.workflows.tasks import report, task_store
from timer_service.workflows.tasks.report import Decision, Rules, TaskState, is_held
from timer_service.workflows.tasks.task_store import Wanted
from timer_service.workflows.workflow import Key, Workflow

_POLL_BYTES = 64 * 1024
_BYTES_PER_TURN = 64 * 1024

POLL_TASKS = RequestRoute("poll-tasks", PollTasks, protocol.Tasks, _POLL_BYTES)
"""The request that the dispatcher answers."""
REQUESTS = (
    RequestRoute("report-tasks", ReportTasks, ReportsReply),
    RequestRoute("renew-tasks", RenewTasks, RenewReply),
    RequestRoute("get-effects", GetEffects, EffectsPage),
)
"""The requests that `handle_requests` applies."""
_MOST_EFFECTS = 1000
"""How many effects a page has at most."""
_WORKFLOW_BYTES = 4096
"""About how much memory a workflow needs that is loaded and saved."""
_COPIES = 3
"""How many copies of its texts a reply needs until it is sent."""

_TOO_LARGE = Rejection(
    Code.TOO_LARGE, "the tasks of the request need too much memory together; send them in smaller requests"
)
_Item = Report | HeldTask | GetEffects
"""What a request says about one task."""


async def handle_requests(
    tx: Transaction, asked: Sequence[Asked], now: int, *, rng: random.Random, may_time_out: bool, room: int
) -> Sequence[Answer]:
    """Apply the first requests, in order; return an answer for each.

    `may_time_out`: all commands that can have been sent before a timeout have been handled. `room`: about how many
    bytes of memory their tasks need. A single task may need more. A request about several tasks that need more is
    refused: its worker sends halves.
    """
    workflows = await store.load(tx, {key for each in asked for key, _ in _items(each)})
    asked = asked[: _count_fitting(asked, workflows, room)]
    if not asked:
        return [Answer(_TOO_LARGE)]
    tasks = await task_store.load(tx, workflows, _wanted(asked, workflows))
    batch = _Batch(tasks, Rules(now, rng, may_time_out))
    turns = Turns(_BYTES_PER_TURN)
    decided = [await batch.decide(each, turns) for each in asked]
    wakes = tuple(await task_store.save(tx, batch.before, batch.tasks, now))
    replies = await batch.replies(tx, asked, decided)
    return [Answer(reply, wakes, batch.lanes(each)) for each, reply in zip(asked, replies, strict=True)]


def _count_fitting(asked: Sequence[Asked], workflows: Mapping[Key, Workflow], room: int) -> int:
    """Return how many of the first requests have room: 0 if the first one has several tasks that need more."""
    used = 0
    for number, each in enumerate(asked):
        items = _items(each)
        used += sum(_weigh(workflows.get(key), item) for key, item in items)
        is_single_task = number == 0 and len(items) == 1  # it has room, however much it needs
        if used > room and not is_single_task:
            return number
    return len(asked)


def _weigh(workflow: Workflow | None, item: _Item) -> int:
    """Return about how much memory a task needs, with its part of the reply. Results that were seen are not read."""
    if workflow is None or not is_held(workflow, item.token):
        return _WORKFLOW_BYTES
    if isinstance(item, GetEffects):
        page = min(workflow.effect_bytes + workflow.effects * effect_store.BYTES_PER_EFFECT, PAGE_BYTES)
        return _WORKFLOW_BYTES + task_store.loaded_bytes(min(workflow.effects, _MOST_EFFECTS)) + _COPIES * page
    unseen = workflow.effects - workflow.seen
    named = written = 0
    if isinstance(item, Report):
        unseen += len(item.waits)
        named = len(item.steps) + len(item.seen)
        written = workflow.input_bytes if isinstance(item.then, Complete | Fail) else 0  # SQLite copies the input
    messages = min(workflow.messages, unseen)
    texts = min(workflow.effect_bytes + workflow.message_bytes, unseen * MAX_DATA_BYTES)
    return _WORKFLOW_BYTES + task_store.loaded_bytes(unseen + named + messages) + _COPIES * texts + written


class _Batch:
    """The tasks that the requests of one transaction name."""

    def __init__(self, before: Mapping[Key, TaskState], rules: Rules) -> None:
        self.before = before
        self.tasks = dict(before)
        """The tasks after the requests so far. Without effects: those that no report or renewal holds."""
        self._rules = rules

    async def decide(self, asked: Asked, turns: Turns) -> list[Decision | None]:
        """Apply a request; return the decision about each of its tasks. None: it is not found. get-effects has none."""
        decisions: list[Decision | None] = []
        for key, each in _items(asked):
            found = self.tasks.get(key)
            await turns.take(0 if found is None else task_store.loaded_bytes(len(found.effects)))
            if isinstance(each, Report):
                decisions.append(self._apply(key, each))
            elif isinstance(each, HeldTask):
                decisions.append(self._renew(key, each.token))
        return decisions

    def _apply(self, key: Key, asked: Report) -> Decision | None:
        """Apply a report; return the decision, None if there is no such workflow."""
        task = self.tasks.get(key)
        if task is None:
            return None
        if not is_held(task.workflow, asked.token):
            return Decision(task, report.refuse(task.workflow, asked.token))
        decision = report.apply(task, asked, self._rules)
        self.tasks[key] = decision.task
        return decision

    def _renew(self, key: Key, token: str) -> Decision | None:
        """Renew the lease of a task; return the decision, None if the task is lost."""
        task = self.tasks.get(key)
        if task is None or not is_held(task.workflow, token):
            return None
        self.tasks[key] = report.renew(task, self._rules)
        return Decision(self.tasks[key], ReportOutcome.RECORDED)

    def lanes(self, asked: Asked) -> tuple[tuple[Lane, int], ...]:
        """Return the lanes in which a request made rows available, and when."""
        keys = {key for key, each in _items(asked) if isinstance(each, Report)}
        freed = [self.tasks[key].workflow for key in keys if key in self.tasks]
        return tuple(
            (each.lane, each.available_at) for each in freed if each.hold is None and each.available_at is not None
        )

    async def replies(
        self, tx: Transaction, asked: Sequence[Asked], decided: Sequence[Sequence[Decision | None]]
    ) -> list[RawJson | Rejection]:
        """Return the replies to requests, after what they changed was saved."""
        over = await task_store.over_views(tx, [_shown(each) for each in decided], self._rules.now)
        return [
            await self._effects_reply(tx, each)
            if isinstance(each.request, GetEffects)
            else _list_reply(each, decisions, views)
            for each, decisions, views in zip(asked, decided, over, strict=True)
        ]

    async def _effects_reply(self, tx: Transaction, asked: Asked) -> RawJson | Rejection:
        """Return a page of effects, or why the request is refused."""
        request: GetEffects = asked.request
        key = Key(asked.tenant, request.workflow_id)
        task = self.tasks.get(key)
        if task is None or not is_held(task.workflow, request.token):
            return Rejection(Code.NOT_FOUND, f"no task {request.workflow_id!r} with this token")
        try:
            after = effect_store.parse_cursor(request.cursor)
        except Rejection as rejection:
            return rejection
        return await task_store.effects_page(tx, key, after, self._rules.now, limit=_MOST_EFFECTS)


def _shown(decisions: Sequence[Decision | None]) -> dict[Key, TaskState]:
    """Return the tasks whose waits that are over the reply to a request names."""
    return {each.task.workflow.key: each.task for each in decisions if each is not None and each.shows_waits}


def _list_reply(asked: Asked, decisions: Sequence[Decision | None], over: Mapping[Key, Sequence[RawJson]]) -> RawJson:
    """Return the reply to reports or renewals. `over`: the views of the waits that are over."""
    pairs = list(zip(_items(asked), decisions, strict=True))
    if isinstance(asked.request, ReportTasks):
        reports = [_reported(key, decision, over) for (key, _), decision in pairs]
        return write_object({}, {"reports": write_list(reports)})
    lost = [
        write_object({"workflowId": key.workflow_id, "token": task.token}, {})
        for (key, task), decision in pairs
        if decision is None
    ]
    tokens = {key: task.token for (key, task), decision in pairs if decision is not None}
    tasks = [
        write_object({"workflowId": key.workflow_id, "token": tokens[key]}, {"over": write_list(views)})
        for key, views in over.items()
    ]
    return write_object({}, {"lost": write_list(lost), "tasks": write_list(tasks)})


def _reported(key: Key, decision: Decision | None, over: Mapping[Key, Sequence[RawJson]]) -> RawJson:
    """Return the reply to one report. None: there is no such workflow."""
    outcome = ReportOutcome.LOST if decision is None else decision.outcome
    fields: dict[str, object] = {"workflowId": key.workflow_id, "outcome": outcome}
    if decision is not None and decision.failed_steps:
        fields["failedSteps"] = [step.model_dump(exclude_none=True) for step in decision.failed_steps]
    return write_object(fields, {"over": write_list(over[key]) if key in over else None})


def _items(asked: Asked) -> Sequence[tuple[Key, _Item]]:
    """Return what a request says about each task, with the workflow."""
    match asked.request:
        case ReportTasks() as request:
            return [(Key(asked.tenant, each.workflow_id), each) for each in request.reports]
        case RenewTasks() as request:
            return [(Key(asked.tenant, each.workflow_id), each) for each in request.tasks]
        case request:
            return [(Key(asked.tenant, request.workflow_id), request)]


def _wanted(asked: Sequence[Asked], workflows: Mapping[Key, Workflow]) -> dict[Key, Wanted]:
    """Return what to load of each held task: the effects that reports name, and messages for the waits that begin."""
    effects: dict[Key, set[EffectKey]] = {}
    messages: dict[Key, Counter[str]] = {}
    for key, item in (pair for each in asked for pair in _items(each)):
        if isinstance(item, GetEffects) or not is_held(workflows.get(key), item.token):
            continue
        named, names = effects.setdefault(key, set()), messages.setdefault(key, Counter())
        if isinstance(item, Report):
            named.update(EffectKey.parse(each.key) for part in (item.steps, item.seen, item.waits) for each in part)
            names.update(EffectKey.parse(each.key).name for each in item.waits if each.kind is EffectKind.MESSAGE)
    return {key: Wanted(frozenset(named), messages[key]) for key, named in effects.items()}
