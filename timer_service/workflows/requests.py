"""Applies the requests of workers about their tasks: reports, renewals and get-effects, for many tenants at once.

All of them run in one transaction, which locks the workflows that they name in the order of their keys. Requests are
applied in order, so the same report twice in one batch has one effect.
"""

import random
from collections.abc import Iterable, Sequence

from timer_service.core.database import Transaction
from timer_service.core.errors import Code, Rejection
from timer_service.core.paging import read_page
from timer_service.core.request_intake import Asked, RequestRoute
from timer_service.core.requests import Answer
from timer_service.core.route import Lane
from timer_service.core.stored_json import RawJson, write_list, write_object
from timer_service.workflows import effect_store, protocol, report, store, task_store
from timer_service.workflows.effect import Effect, EffectKey
from timer_service.workflows.effect_store import Cursor
from timer_service.workflows.protocol import (
    REPLY_BYTES,
    EffectKind,
    EffectsPage,
    GetEffects,
    PollTasks,
    RenewReply,
    RenewTasks,
    Report,
    ReportOutcome,
    ReportsReply,
    ReportTasks,
)
from timer_service.workflows.report import Decision, Rules, TaskState, is_held
from timer_service.workflows.task_store import Wanted
from timer_service.workflows.workflow import Key

_POLL_BYTES = 64 * 1024

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


async def handle_requests(
    tx: Transaction, asked: Sequence[Asked], now: int, *, rng: random.Random, may_time_out: bool
) -> Sequence[Answer]:
    """Apply requests in order; return an answer for each.

    `may_time_out`: all commands that can have been sent before a timeout have been handled.
    """
    batch = await _Batch.load(tx, asked, Rules(now, rng, may_time_out))
    decided = [batch.decide(each) for each in asked]
    adds_events = await task_store.save(tx, batch.before, batch.tasks, now)
    wakes = ("outbox",) if adds_events else ()
    return [
        Answer(await batch.reply(tx, each, decisions), wakes, batch.lanes(each))
        for each, decisions in zip(asked, decided, strict=True)
    ]


class _Batch:
    """The tasks that the requests of one transaction name."""

    def __init__(self, before: dict[Key, TaskState], unheld: dict[Key, TaskState], rules: Rules) -> None:
        self.before = before
        self.tasks = dict(before)
        self._unheld = unheld
        """The workflows that no request holds."""
        self._rules = rules

    @classmethod
    async def load(cls, tx: Transaction, asked: Sequence[Asked], rules: Rules) -> "_Batch":
        """Lock the workflows that requests name, and load the tasks of those whose tokens are current."""
        tokens: dict[Key, set[str]] = {}
        for key, token in (pair for each in asked for pair in _tokens(each)):
            tokens.setdefault(key, set()).add(token)
        workflows = await store.load(tx, tokens)
        held = {key: each for key, each in workflows.items() if any(is_held(each, token) for token in tokens[key])}
        tasks = await task_store.load(tx, held, _wanted(asked, held))
        unheld = {key: TaskState(each, {}, {}) for key, each in workflows.items() if key not in held}
        return cls(tasks, unheld, rules)

    def decide(self, asked: Asked) -> list[Decision | None]:
        """Apply a request; return the decision about each of its tasks, None for one that is not found."""
        match asked.request:
            case ReportTasks() as request:
                return [self._apply(Key(asked.tenant, each.workflow_id), each) for each in request.reports]
            case RenewTasks() as request:
                return [self._renew(Key(asked.tenant, each.workflow_id), each.token) for each in request.tasks]
            case _:
                return []

    def _apply(self, key: Key, asked: Report) -> Decision | None:
        task = self.tasks.get(key) or self._unheld.get(key)
        if task is None:
            return None
        if not is_held(task.workflow, asked.token):
            return Decision(task, report.refuse(task.workflow, asked.token))
        decision = report.apply(task, asked, self._rules)
        self.tasks[key] = decision.task
        return decision

    def _renew(self, key: Key, token: str) -> Decision | None:
        task = self.tasks.get(key)
        if task is None or not is_held(task.workflow, token):
            return None
        self.tasks[key] = report.renew(task, self._rules)
        return Decision(self.tasks[key], ReportOutcome.RECORDED)

    def lanes(self, asked: Asked) -> tuple[tuple[Lane, int], ...]:
        """Return the lanes in which a request made rows available, and when."""
        keys = {key for key, _ in _tokens(asked)} if isinstance(asked.request, ReportTasks) else set()
        freed = [self.tasks[key].workflow for key in keys if key in self.tasks]
        return tuple(
            (each.lane, each.available_at) for each in freed if each.hold is None and each.available_at is not None
        )

    async def reply(self, tx: Transaction, asked: Asked, decisions: Sequence[Decision | None]) -> RawJson | Rejection:
        """Return the reply to a request, after what the requests changed was saved."""
        match asked.request:
            case ReportTasks() as request:
                return await self._report_reply(tx, asked.tenant, request, decisions)
            case RenewTasks() as request:
                return await self._renew_reply(tx, asked.tenant, request, decisions)
            case request:
                return await self._effects_reply(tx, asked.tenant, request)

    async def _report_reply(
        self, tx: Transaction, tenant: str, request: ReportTasks, decisions: Sequence[Decision | None]
    ) -> RawJson:
        shown = {
            Key(tenant, each.workflow_id): decision.task
            for each, decision in zip(request.reports, decisions, strict=True)
            if decision is not None and decision.shows_waits
        }
        over = await task_store.over_views(tx, shown.items(), self._rules.now, REPLY_BYTES)
        replies = []
        for each, decision in zip(request.reports, decisions, strict=True):
            outcome = ReportOutcome.LOST if decision is None else decision.outcome
            fields: dict[str, object] = {"workflowId": each.workflow_id, "outcome": outcome}
            if decision is not None and decision.failed_steps:
                fields["failedSteps"] = [step.model_dump(exclude_none=True) for step in decision.failed_steps]
            shows = decision is not None and decision.shows_waits
            views = over.get(Key(tenant, each.workflow_id), []) if shows else []
            replies.append(write_object(fields, {"over": write_list(views) if views else None}))
        return write_object({}, {"reports": write_list(replies)})

    async def _renew_reply(
        self, tx: Transaction, tenant: str, request: RenewTasks, decisions: Sequence[Decision | None]
    ) -> RawJson:
        pairs = list(zip(request.tasks, decisions, strict=True))
        kept = {Key(tenant, each.workflow_id): decision.task for each, decision in pairs if decision is not None}
        over = await task_store.over_views(tx, kept.items(), self._rules.now, REPLY_BYTES)
        tasks = [
            write_object({"workflowId": key.workflow_id, "token": _token(kept[key])}, {"over": write_list(views)})
            for key, views in over.items()
        ]
        lost = [{"workflowId": each.workflow_id, "token": each.token} for each, decision in pairs if decision is None]
        fields = {"lost": [each["workflowId"] for each in lost], "lostTasks": lost}
        return write_object(fields, {"tasks": write_list(tasks)})

    async def _effects_reply(self, tx: Transaction, tenant: str, request: GetEffects) -> RawJson | Rejection:
        key = Key(tenant, request.workflow_id)
        task = self.tasks.get(key)
        if task is None or not is_held(task.workflow, request.token):
            return Rejection(Code.NOT_FOUND, f"no task {request.workflow_id!r} with this token")
        try:
            after = effect_store.parse_cursor(request.cursor)
        except Rejection as rejection:
            return rejection

        async def read(after: Cursor, limit: int) -> list[Effect]:
            return await effect_store.page(tx, key, after, limit)

        return await read_page(
            "effects",
            read,
            after=after,
            limit=_MOST_EFFECTS,
            view=lambda effect: task_store.effect_view(effect, self._rules.now),
            cursor_of=effect_store.cursor_of,
        )


def _token(task: TaskState) -> str:
    assert task.workflow.hold is not None  # noqa: S101 - only tasks are renewed
    return task.workflow.hold.token


def _tokens(asked: Asked) -> Iterable[tuple[Key, str]]:
    """Return the workflows that a request names, each with its token."""
    match asked.request:
        case ReportTasks() as request:
            return [(Key(asked.tenant, each.workflow_id), each.token) for each in request.reports]
        case RenewTasks() as request:
            return [(Key(asked.tenant, each.workflow_id), each.token) for each in request.tasks]
        case request:
            return [(Key(asked.tenant, request.workflow_id), request.token)]


def _wanted(asked: Sequence[Asked], keys: Iterable[Key]) -> dict[Key, Wanted]:
    """Return what to load of each workflow: the effects that reports name, and messages for the waits that begin."""
    effects: dict[Key, set[EffectKey]] = {key: set() for key in keys}
    messages: dict[Key, dict[str, int]] = {key: {} for key in effects}
    for request in asked:
        reports = request.request.reports if isinstance(request.request, ReportTasks) else ()
        for one in reports:
            key = Key(request.tenant, one.workflow_id)
            if key not in effects:
                continue
            named = (
                [each.key for each in one.steps] + [each.key for each in one.seen] + [each.key for each in one.waits]
            )
            effects[key].update(map(EffectKey.parse, named))
            for wait in one.waits:
                if wait.kind is EffectKind.MESSAGE:
                    name = EffectKey.parse(wait.key).name
                    messages[key][name] = messages[key].get(name, 0) + 1
    return {key: Wanted(frozenset(effects[key]), messages[key]) for key in effects}
