"""The methods of the client for workflows (durable functions)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from timer_service.client.answers import read_cursor
from timer_service.client.checks import (
    check_choice,
    check_identifier,
    check_seconds,
    check_tenant,
    check_text,
    wire_duration,
    wire_instant,
)
from timer_service.client.connection import Connection
from timer_service.client.errors import NoAnswerError, QueryError, WorkflowEndedError
from timer_service.client.models import UNSET, Outcome
from timer_service.client.retry import Retry
from timer_service.client.workflow_models import (
    WorkerInfo,
    Workflow,
    WorkflowCounts,
    WorkflowDetail,
    WorkflowEffect,
    WorkflowStatus,
)
from timer_service.client.workflow_start import WorkflowStart, wire_start

_ENDED = frozenset([WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED])
_EVENTS = ("workflow-completed", "workflow-failed", "workflow-cancelled")
_LOOK_AGAIN_SECONDS = 10
"""An event of the end can be missed while the connection is lost."""
_PAUSE_SECONDS = 1
_QUERY_SECONDS = 10
_TRY_AGAIN = {"BUSY", "INTERNAL"}
"""The errors of a query after which it may succeed later."""


class Workflows:
    """Methods for workflows, as `TimerClient.workflows`. They raise the same exceptions as `TimerClient`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def start(
        self,
        tenant: str,
        workflow: str,
        workflow_type: str,
        data: Any = UNSET,
        *,
        queue: str | None = None,
        start_at: datetime | None = None,
        start_in: timedelta | None = None,
        deadline_at: datetime | None = None,
        deadline_in: timedelta | None = None,
        retry: Retry | None = None,
        concurrency_key: str | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Start a workflow: a worker executes the function with the name `workflow_type`, with `data` as its input.

        `data` is any JSON value of at most 64 KiB. The workflow begins at `start_at`, or `start_in` after the broker
        has stored the command. If it has not ended at its deadline, it fails. `retry` is the policy of its steps, if
        neither they nor the function have one. Of the workflows with one `concurrency_key`, at most one is open: the
        outcome is `skipped_busy` if there is one.

        Nothing is started if there is a workflow with this id, also if it has ended. Then the outcome is `unchanged` if
        it has the same type, queue and input, and `exists` if not.
        """
        _check_one("start_at", start_at, "start_in", start_in)
        _check_one("deadline_at", deadline_at, "deadline_in", deadline_in)
        start = WorkflowStart(
            workflow_type=workflow_type,
            data=data,
            queue=queue,
            deadline_in=deadline_in,
            retry=retry,
            concurrency_key=concurrency_key,
        )
        instants = {
            "startAt": None if start_at is None else wire_instant("start_at", start_at),
            "startIn": None if start_in is None else wire_duration("start_in", start_in),
            "deadlineAt": None if deadline_at is None else wire_instant("deadline_at", deadline_at),
        }
        given = {name: value for name, value in instants.items() if value is not None}
        return await self._send("StartWorkflow", tenant, workflow, {**wire_start(start), **given}, timeout_seconds)

    async def send(
        self,
        tenant: str,
        workflow: str,
        name: str,
        data: Any = UNSET,
        *,
        message_id: str | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Send a message to a workflow. It is stored until `ctx.wait_for(name)` takes it, also before the start.

        A second message with the same `message_id` has no effect.
        """
        fields = {"name": check_text("name", name), **({} if data is UNSET else {"data": data})}
        if message_id is not None:
            fields["messageId"] = check_identifier("message_id", message_id)
        return await self._send("SendToWorkflow", tenant, workflow, fields, timeout_seconds)

    async def cancel(
        self, tenant: str, workflow: str, *, reason: str | None = None, timeout_seconds: float = 10
    ) -> Outcome:
        """End a workflow that has not ended. Its worker stops at its next request."""
        fields = {} if reason is None else {"reason": check_text("reason", reason)}
        return await self._send("CancelWorkflow", tenant, workflow, fields, timeout_seconds)

    async def retry(
        self, tenant: str, workflow: str, *, deadline_in: timedelta | None = None, timeout_seconds: float = 10
    ) -> Outcome:
        """Continue a failed workflow. If its function ended with the error of a failed step, this step runs again."""
        fields = {} if deadline_in is None else {"deadlineIn": wire_duration("deadline_in", deadline_in)}
        return await self._send("RetryWorkflow", tenant, workflow, fields, timeout_seconds)

    async def get(self, tenant: str, workflow: str, *, timeout_seconds: float = 10) -> WorkflowDetail | None:
        """Return a workflow with all its effects, or None if it does not exist. Reads every page."""
        question: dict[str, Any] = {"workflowId": check_identifier("workflow", workflow)}
        effects: list[WorkflowEffect] = []
        while (page := await self._connection.find(tenant, "get-workflow", question, timeout_seconds)) is not None:
            detail = WorkflowDetail.read(page)
            effects += detail.effects
            cursor = read_cursor(page, question.get("cursor"))
            if cursor is None:
                return detail.model_copy(update={"effects": effects})
            question["cursor"] = cursor
        return None

    def list(
        self,
        tenant: str,
        *,
        status: str | None = None,
        workflow_type: str | None = None,
        timeout_seconds: float = 10,
    ) -> AsyncIterator[Workflow]:
        """Iterate over the workflows of a tenant in order of creation. `status` and `workflow_type` filter them."""
        question: dict[str, Any] = {}
        if status is not None:
            question["status"] = check_choice("status", status, WorkflowStatus)
        if workflow_type is not None:
            question["type"] = check_text("workflow_type", workflow_type)
        views = self._connection.pages(tenant, "list-workflows", question, "workflows", timeout_seconds)
        return (Workflow.read(view) async for view in views)

    async def count(self, tenant: str, *, timeout_seconds: float = 10) -> WorkflowCounts:
        """Count the workflows of a tenant by status."""
        return WorkflowCounts.read(await self._connection.ask(tenant, "count-workflows", {}, timeout_seconds))

    def workers(self, tenant: str, *, timeout_seconds: float = 10) -> AsyncIterator[WorkerInfo]:
        """Iterate over the workers of a tenant that the service has heard of lately, in order of their ids."""
        views = self._connection.pages(tenant, "list-workers", {}, "workers", timeout_seconds)
        return (WorkerInfo.read(view) async for view in views)

    async def result(self, tenant: str, workflow: str, *, timeout_seconds: float | None = None) -> Any:
        """Wait until a workflow ends, and return the result of its function.

        Raises `WorkflowEndedError` if it failed or was cancelled, LookupError if it does not exist, and TimeoutError
        after `timeout_seconds`. While the connection is lost, or the service cannot answer, it goes on waiting.
        """
        check_tenant(tenant)
        check_identifier("workflow", workflow)
        seconds = None if timeout_seconds is None else check_seconds("timeout_seconds", timeout_seconds)
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await self._result(tenant, workflow)
                except NoAnswerError:
                    await asyncio.sleep(_PAUSE_SECONDS)
                except QueryError as error:
                    if error.code not in _TRY_AGAIN:
                        raise
                    await asyncio.sleep(_PAUSE_SECONDS)

    def watch(self, tenant: str = "*") -> AsyncIterator[dict[str, Any]]:
        """Iterate over the events about ends of workflows from now on. See `TimerClient.watch`."""
        return self._connection.events(tenant, *_EVENTS)

    async def _result(self, tenant: str, workflow: str) -> Any:
        """Return the result of a workflow once it has ended. Looks at it first, and again after each event."""
        events = self._connection.events(tenant, *_EVENTS)
        following = asyncio.ensure_future(_next_end(events, workflow))
        try:
            while True:
                detail = await self._look(tenant, workflow)
                if detail is None:
                    raise LookupError(f"there is no workflow {tenant}/{workflow}")
                if detail.workflow.status in _ENDED:
                    return _result_of(detail)
                await asyncio.wait([following], timeout=_LOOK_AGAIN_SECONDS)
                if following.done():
                    following.result()
                    following = asyncio.ensure_future(_next_end(events, workflow))
        finally:
            following.cancel()
            await asyncio.wait([following])
            await events.aclose()  # a program that keeps the error would keep the watch

    async def _look(self, tenant: str, workflow: str) -> WorkflowDetail | None:
        """Return a workflow with its result, or None if it does not exist. There may be 8 MiB of effects: reads one."""
        question = {"workflowId": workflow, "limit": 1}
        page = await self._connection.find(tenant, "get-workflow", question, _QUERY_SECONDS)
        return None if page is None else WorkflowDetail.read(page)

    async def _send(
        self, message_type: str, tenant: str, workflow: str, fields: Mapping[str, Any], timeout_seconds: float
    ) -> Outcome:
        named = {"workflowId": check_identifier("workflow", workflow), **fields}
        return await self._connection.send(message_type, tenant, named, timeout_seconds)


async def _next_end(events: AsyncIterator[dict[str, Any]], workflow: str) -> None:
    """Return after the next event about a workflow. Raises `NoAnswerError` when the connection is lost."""
    async for event in events:
        if event["payload"].get("workflowId") == workflow:
            return


def _result_of(detail: WorkflowDetail) -> Any:
    workflow = detail.workflow
    if workflow.status == WorkflowStatus.COMPLETED:
        return detail.result
    raise WorkflowEndedError(workflow, detail.failure)


def _check_one(first: str, first_value: object, second: str, second_value: object) -> None:
    if first_value is not None and second_value is not None:
        raise ValueError(f"{first} cannot be combined with {second}")
