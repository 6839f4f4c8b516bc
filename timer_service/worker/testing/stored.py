"""One workflow as the service stores it, in memory. The rules are those of the service; time is an argument."""

from collections.abc import Mapping
from random import Random
from typing import Any

from pydantic_core import from_json

from timer_service.client.workflow_models import WorkflowDetail
from timer_service.core.values.data import dump_data
from timer_service.core.values.instant import format_instant, format_optional
from timer_service.core.values.message import Command, Position, Trace
from timer_service.core.values.stored_json import RawJson
from timer_service.workflows.commands import rules
from timer_service.workflows.commands.rules import Facts
from timer_service.workflows.effect import Effect, Effects, message_names, next_due
from timer_service.workflows.effect_store import cursor_of
from timer_service.workflows.messages import FailureCode, SendToWorkflow, WorkflowPayload, WorkflowStatus
from timer_service.workflows.protocol import ReportTasks
from timer_service.workflows.queries import workflow_view
from timer_service.workflows.tasks import report as report_rules
from timer_service.workflows.tasks.report import Rules, TaskState
from timer_service.workflows.tasks.task_store import effect_view
from timer_service.workflows.workflow import Hold, Workflow

_WORKER = "simulation"
_LEASE_MS = 30_000


class StoredWorkflow:
    """A workflow with its effects and messages. Instants are Unix milliseconds."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._workflow: Workflow | None = None
        self._effects: Effects = {}
        self._inbox: dict[str, tuple[Any, ...]] = {}
        self._data: dict[Position, str | None] = {}
        self._commands = 0
        self._claims = 0

    @property
    def workflow(self) -> Workflow:
        """The workflow. It must have been started."""
        assert self._workflow is not None  # noqa: S101
        return self._workflow

    def handle(self, payload: WorkflowPayload, now: int) -> None:
        """Handle a command that is stored at `now`. The data of a message is kept apart, until a wait takes it."""
        self._commands += 1
        position = Position(1, self._commands)
        command = Command(str(self._commands), payload, position, None, Trace(), None, stored_at=now)
        if isinstance(payload, SendToWorkflow):
            facts = Facts(is_awaited=payload.name in message_names(self._effects.values()))
        else:
            facts = Facts()
        applied = rules.apply(self._workflow, command, facts, now)
        self._workflow = applied.workflow
        if applied.message is not None and isinstance(payload, SendToWorkflow):
            waiting = self._inbox.get(payload.name, ())
            self._inbox[payload.name] = (*waiting, applied.message)
            self._data[position] = None if payload.data is None else dump_data(payload.data)

    def end_at_deadline(self, now: int) -> None:
        """End the workflow if its deadline has passed."""
        definition = self.workflow.definition
        deadline = None if definition is None else definition.deadline_at
        if self.workflow.is_open and deadline is not None and deadline <= now:
            self._workflow = self.workflow.fail(FailureCode.DEADLINE, now)

    def claim(self, now: int) -> Mapping[str, Any] | None:
        """Return the task of the workflow for a worker, or None if it is not available."""
        workflow = self.workflow
        due = workflow.available_at
        if workflow.status is not WorkflowStatus.WAITING or due is None or due > now:
            return None
        self._claims += 1
        hold = Hold(f"{self._claims:016x}", _WORKER, now, _LEASE_MS)
        held = workflow._replace(status=WorkflowStatus.RUNNING, attempt=workflow.attempt + 1, hold=hold)
        self._save(report_rules.end_waits_over(self._task(held.renew(now)), Rules(now, self._random)))
        return {
            "workflowId": workflow.key.workflow_id,
            "token": hold.token,
            "input": _read(self.workflow.texts.input),
            "startedAt": format_instant(workflow.created_at),
            "effects": self.effects(now),
        }

    def report(self, view: Mapping[str, Any], now: int) -> Mapping[str, Any]:
        """Apply a report of the worker, and return its outcome in the wire form."""
        request = ReportTasks.model_validate({"workerId": _WORKER, "reports": [view]}, by_alias=True, by_name=False)
        (report,) = request.reports
        if not report_rules.is_held(self.workflow, report.token):
            return {"outcome": report_rules.refuse(self.workflow, report.token)}
        decision = report_rules.apply(self._task(self.workflow), report, Rules(now, self._random))
        self._save(decision.task)
        failed = [step.model_dump(by_alias=True, exclude_none=True) for step in decision.failed_steps]
        ended = self._ended_waits(now) if decision.shows_waits else []
        return {"outcome": decision.outcome, "failedSteps": failed, "over": ended}

    def renew(self, token: str, now: int) -> list[Mapping[str, Any]] | None:
        """Return the waits that are over, or None if the token is not current."""
        if not report_rules.is_held(self.workflow, token):
            return None
        self._save(report_rules.renew(self._task(self.workflow), Rules(now, self._random)))
        return self._ended_waits(now)

    def next_at(self, now: int) -> int | None:
        """Return when something will happen by itself, after `now`; None if nothing will."""
        workflow, definition = self.workflow, self.workflow.definition
        if not workflow.is_open or definition is None:
            return None
        due = next_due(each for each in self._effects.values() if each.due_at is not None and each.due_at > now)
        due_at = None if due is None else due.at
        at = workflow.available_at if workflow.hold is None else due_at
        return min((each for each in (at, definition.deadline_at) if each is not None), default=None)

    def effects(self, now: int) -> list[Mapping[str, Any]]:
        """Return the effects for a worker: in the order of `seq`, then those without, in the order of their keys."""
        return [_parse(effect_view(each, now)) for each in sorted(self._effects.values(), key=cursor_of)]

    def detail(self, now: int) -> WorkflowDetail:
        """Return what the client's `get` returns."""
        texts = self.workflow.texts
        effects = self.effects(now)
        due = {each.key.text: format_optional(each.due_at) for each in self._effects.values()}
        view = {
            "workflow": _parse(workflow_view(self.workflow)),
            "hasWorkers": True,
            "input": _read(texts.input),
            "result": _read(texts.result),
            "failure": _read(texts.error),
            "effects": [{**each, "dueAt": due[each["key"]]} for each in effects],
        }
        return WorkflowDetail.read(view)

    def _task(self, workflow: Workflow) -> TaskState:
        return TaskState(workflow, self._effects, self._inbox)

    def _save(self, task: TaskState) -> None:
        """Store the workflow, its inbox and its effects."""
        self._workflow, self._inbox = task.workflow, dict(task.inbox)
        self._effects = {key: self._with_data(each) for key, each in task.effects.items()}

    def _with_data(self, effect: Effect) -> Effect:
        """Return an effect with the data of the message that it has taken, if any."""
        if effect.taken is None:
            return effect
        return effect._replace(taken=None, result=self._data.pop(effect.taken.position))

    def _ended_waits(self, now: int) -> list[Mapping[str, Any]]:
        """Return the waits that have ended and whose ends the function has not got, in their wire form."""
        ended = sorted((each for each in self._effects.values() if each.is_over), key=lambda each: each.key)
        return [_parse(effect_view(each, now)) for each in ended]


def _parse(raw: RawJson) -> Mapping[str, Any]:
    found: Mapping[str, Any] = from_json(raw.text)
    return found


def _read(text: str | None) -> Any:
    return None if text is None else from_json(text)
