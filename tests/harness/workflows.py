"""Conversations about workflows: with the workflows slice in this process, and with the real service."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from tests.harness.clock import ManualClock
from tests.harness.conversation import Conversation
from tests.harness.in_process import InProcess, Options, exhaust
from tests.harness.memory_broker import MemoryBroker
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.requests.requests import Asked
from timer_service.core.values.budget import MIB
from timer_service.core.values.errors import Rejection
from timer_service.core.values.message import Payload
from timer_service.workflows import SLICE
from timer_service.workflows.deadline_worker import DeadlineWorker
from timer_service.workflows.key_worker import KeyWorker
from timer_service.workflows.protocol import GetEffects, RenewTasks, ReportTasks
from timer_service.workflows.protocol import Task as TaskModel
from timer_service.workflows.tasks import lanes
from timer_service.workflows.tasks.build import read_tasks
from timer_service.workflows.tasks.lanes import LaneClaim
from timer_service.workflows.tasks.requests import handle_requests

LEASE_MS = 30_000
MAX_ATTEMPTS = 5
CONTINUE = {"action": "continue"}
PARK = {"action": "park"}


def complete(result: Any = None) -> dict[str, Any]:
    """Return the end of a report of a function that has returned."""
    return {"action": "complete", "result": result}


def fail(message: str = "boom", step: str | None = None) -> dict[str, Any]:
    """Return the end of a report of a function that has raised an error."""
    return {"action": "fail", "error": {"type": "ValueError", "message": message}, "step": step}


def release(reason: str = "shutdown", error: str | None = None) -> dict[str, Any]:
    """Return the end of a report of a worker that gives its task back."""
    return {"action": "release", "reason": reason, "error": error}


def done(key: str, result: Any = None, attempt: int = 1) -> dict[str, Any]:
    """Return an attempt of a step that has succeeded."""
    return {"key": key, "attempt": attempt, "result": result}


def failed(key: str, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    """Return an attempt of a step that has failed."""
    return {"key": key, "attempt": attempt, "error": {"type": "OSError", "message": "no"}, **fields}


def seen(*keys: str, after: int = 0) -> list[dict[str, Any]]:
    """Return the numbers of results that the function got in this order."""
    return [{"key": key, "seq": after + number} for number, key in enumerate(keys, 1)]


def sleep(key: str, ms: int) -> dict[str, Any]:
    """Return a sleep that began."""
    return {"key": key, "kind": "sleep", "ms": ms}


def wait_for(key: str, ms: int | None = None) -> dict[str, Any]:
    """Return a wait for a message that began, with a timeout."""
    return {"key": key, "kind": "message", "ms": ms}


class WorkflowConversation(Conversation):
    """A conversation about `order-1`, unless a test names another workflow."""

    fields: ClassVar = {"workflowId": "order-1"}

    async def start(self, workflow: str = "order-1", **fields: Any) -> str:
        """Start a workflow of the type `order` and return the outcome."""
        fields = {"type": "order", **fields}
        return str((await self.request("StartWorkflow", workflowId=workflow, **fields))["outcome"])

    async def send_to(self, workflow: str = "order-1", name: str = "approval", **fields: Any) -> str:
        """Send a message to a workflow and return the outcome."""
        return str((await self.request("SendToWorkflow", workflowId=workflow, name=name, **fields))["outcome"])

    async def about(self, verb: str, workflow: str = "order-1", **fields: Any) -> str:
        """Send a command about a workflow and return the outcome. `verb` is Cancel or Retry."""
        return str((await self.request(f"{verb}Workflow", workflowId=workflow, **fields))["outcome"])

    async def view(self, workflow: str = "order-1", **fields: Any) -> Any:
        """Return the reply to get-workflow."""
        return await self.ask("get-workflow", workflowId=workflow, **fields)

    async def status(self, workflow: str = "order-1") -> str:
        """Return the status of a workflow."""
        return str((await self.view(workflow))["workflow"]["status"])

    async def events_of(self, message_type: str, workflow: str = "order-1", tenant: str | None = None) -> list[Any]:
        """Return the published events of a type about a workflow, in order of publication."""
        events = [json.loads(each.body) for each in await self.stored(tenant)]
        about = [each for each in events if each["payload"].get("workflowId") == workflow]
        return [each for each in about if each["type"] == message_type]


class Workflows(WorkflowConversation, InProcess):
    """The workflows slice in this process, and one worker."""

    def __init__(
        self, database: Database, broker: MemoryBroker, clock: ManualClock, **options: Unpack[Options]
    ) -> None:
        super().__init__(database, broker, clock, SLICE, **options)
        self.worker = DeadlineWorker(self.parts)
        self.key_worker = KeyWorker(self.parts)
        self.may_time_out = True
        self.rng = random.Random(0)
        self._numbers: Counter[tuple[str, str]] = Counter()

    async def poll(
        self, slots: int = 100, *, tenant: str = "acme", worker_id: str = "worker-1", workflow_type: str = "order"
    ) -> list[Any]:
        """Claim the available workflows of a lane and return the tasks that are sent."""
        now = self.clock.now()
        claim = LaneClaim((tenant, "default", workflow_type), slots, worker_id, LEASE_MS)
        async with self.database.transaction() as tx:
            (rows,) = await lanes.claim(tx, [claim], now)
            read = await read_tasks(
                tx,
                rows,
                now,
                max_attempts=MAX_ATTEMPTS,
                may_time_out=self.may_time_out,
                wake=lambda loop: self.worker_wakes.append((loop, now)),
            )
        tasks = [json.loads(task.text) for task in read if task is not None]
        for task in tasks:
            TaskModel.model_validate(task, by_alias=True, by_name=False)
        return tasks

    async def take(self, **fields: Any) -> Any:
        """Return the only task that is available."""
        (task,) = await self.poll(**fields)
        return task

    async def begin(self, workflow: str = "order-1", **fields: Any) -> Any:
        """Start a workflow and return its task."""
        assert await self.start(workflow, **fields) == "started"
        return await self.take()

    async def ask_all(self, *requests: Payload, tenant: str = "acme", room: int = 1024 * MIB) -> list[Any]:
        """Send the requests of a worker, and return the replies to those that one transaction has applied."""
        asked = [Asked(tenant, request) for request in requests]
        now = self.clock.now()
        answers = await in_transaction(
            self.database,
            lambda tx: handle_requests(tx, asked, now, rng=self.rng, may_time_out=self.may_time_out, room=room),
        )
        self.answers = answers
        return [_decode(answer.reply) for answer in answers]

    async def report(
        self, task: Any, then: Mapping[str, Any] = CONTINUE, *, number: int | None = None, **fields: Any
    ) -> Any:
        """Report what happened to a task, and return the outcome. Without a `number` it is the next report."""
        held = task["workflowId"], task["token"]
        number = self._numbers[held] + 1 if number is None else number
        self._numbers[held] = max(self._numbers[held], number)
        (reply,) = await self.ask_all(report(task, then, number=number, **fields))
        (outcome,) = reply["reports"]
        return outcome

    async def report_body(self, asked: ReportTasks) -> bytes:
        """Send reports and return the body of the reply."""
        (reply,) = await self.ask_all(asked)
        return json.dumps(reply).encode()

    async def renew(self, *tasks: Any) -> Any:
        """Renew the leases of tasks."""
        held = [{"workflowId": task["workflowId"], "token": task["token"]} for task in tasks]
        (reply,) = await self.ask_all(RenewTasks.model_validate({"workerId": "worker-1", "tasks": held}))
        return reply

    async def effects(self, task: Any, cursor: str | None = None) -> Any:
        """Return a page of the effects of a task."""
        asked = {"workflowId": task["workflowId"], "token": task["token"], "cursor": cursor}
        (reply,) = await self.ask_all(GetEffects.model_validate(asked))
        return reply

    async def end_overdue(self) -> None:
        """End the workflows whose deadline has passed."""
        await exhaust(self.worker, self.clock.now())

    async def take_turns(self) -> None:
        """Start the queued workflows whose turn it is, and cancel those that are replaced."""
        await exhaust(self.key_worker, self.clock.now())

    async def row(self, workflow: str = "order-1", tenant: str = "acme") -> dict[str, Any]:
        """Return the row of a workflow."""
        return await self.only_row("workflows", tenant_id=tenant, workflow_id=workflow)

    async def all_rows(self, table: str = "workflows") -> list[dict[str, Any]]:
        """Return every row of a table, in order of the keys."""
        return await self.rows(table)


def report(task: Any, then: Mapping[str, Any] = CONTINUE, *, number: int = 1, **fields: Any) -> ReportTasks:
    """Return a request with one report about a task."""
    held = {"workflowId": task["workflowId"], "token": task["token"]}
    return reports([{**held, "number": number, "then": then, **fields}])


def reports(many: Sequence[Mapping[str, Any]]) -> ReportTasks:
    """Return a request with reports."""
    return ReportTasks.model_validate({"workerId": "worker-1", "reports": many}, by_alias=True, by_name=False)


def _decode(reply: Any) -> Any:
    if isinstance(reply, Rejection):
        return {"error": reply.code}
    return json.loads(reply.text)
