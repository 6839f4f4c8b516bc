"""The methods of the client for workflows (durable functions)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, overload

from timer_service.client.checks import (
    check_choice,
    check_identifier,
    check_seconds,
    check_tenant,
    check_text,
    optional,
    wire_duration,
    wire_instant,
)
from timer_service.client.convert import read_data, returned_type
from timer_service.client.errors import NoAnswerError, QueryError, WorkflowEndedError
from timer_service.client.events import WorkflowCancelled, WorkflowCompleted, WorkflowFailed
from timer_service.client.models import UNSET, Outcome
from timer_service.client.names import WhenBusy, WorkflowStatus
from timer_service.client.resource import Resource
from timer_service.client.retry import Retry
from timer_service.client.workflow_models import (
    WorkerInfo,
    Workflow,
    WorkflowCounts,
    WorkflowDetail,
)
from timer_service.client.workflow_start import WorkflowStart, wire_start
from timer_service.client.workflow_type import Input, Result, WorkflowType, check_workflow_type, name_of_type

_EVENTS = ("workflow-completed", "workflow-failed", "workflow-cancelled")
LOOK_AGAIN_SECONDS = 10
"""An event of the end can be missed while the connection is lost."""
_PAUSE_SECONDS = 1
_QUERY_SECONDS = 10
_TRY_AGAIN = {"BUSY", "INTERNAL"}
"""The errors of a query after which it may succeed later."""


class Workflows(Resource):
    """Methods for workflows, as `TimerClient.workflows`. They raise the same exceptions as `TimerClient`."""

    _id = ("workflowId", "workflow_id")

    async def start(
        self,
        tenant: str,
        workflow_id: str,
        workflow_type: str | WorkflowType[Input, Any],
        data: Input = UNSET,
        *,
        queue: str | None = None,
        start_at: datetime | None = None,
        start_in: timedelta | None = None,
        deadline_at: datetime | None = None,
        deadline_in: timedelta | None = None,
        retry: Retry | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        when_busy: WhenBusy | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Start a workflow: a worker executes the function `workflow_type`, with `data` as its input.

        `workflow_type` is the function with the decorator `@workflow`, or the name of its type. `data` has at most
        64 KiB as JSON. The workflow begins at `start_at`, or `start_in` after the broker
        has stored the command. If it has not ended at its deadline, it fails. `retry` is the policy of its steps, if
        neither they nor the function have one.

        At most `concurrency_limit` workflows (default: 1) with one `concurrency_key` are started and have not ended. If
        there are so many, or others wait, `when_busy` decides. `skip` (the default): it does not start, and the outcome
        is `skipped_busy`. `queue`: it waits for its turn. `replace`: the oldest of them is cancelled, and it starts.
        The outcome of both is `queued`. The time in the queue counts for the deadline.

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
            concurrency_limit=concurrency_limit,
            when_busy=when_busy,
        )
        instants = {
            "startAt": optional(wire_instant, "start_at", start_at),
            "startIn": optional(wire_duration, "start_in", start_in),
            "deadlineAt": optional(wire_instant, "deadline_at", deadline_at),
        }
        return await self._send("StartWorkflow", tenant, workflow_id, timeout_seconds, **wire_start(start), **instants)

    async def send(
        self,
        tenant: str,
        workflow_id: str,
        name: str,
        data: Any = UNSET,
        *,
        message_id: str | None = None,
        timeout_seconds: float = 10,
    ) -> Outcome:
        """Send a message to a workflow. It is stored until `ctx.wait_for(name)` takes it, also before the start.

        A second message with the same `message_id` has no effect.
        """
        fields = {"name": check_text("name", name), "messageId": optional(check_identifier, "message_id", message_id)}
        return await self._send("SendToWorkflow", tenant, workflow_id, timeout_seconds, data, **fields)

    async def cancel(
        self, tenant: str, workflow_id: str, *, reason: str | None = None, timeout_seconds: float = 10
    ) -> Outcome:
        """End a workflow that has not ended. Its worker stops at its next request."""
        why = optional(check_text, "reason", reason)
        return await self._send("CancelWorkflow", tenant, workflow_id, timeout_seconds, reason=why)

    async def retry(
        self, tenant: str, workflow_id: str, *, deadline_in: timedelta | None = None, timeout_seconds: float = 10
    ) -> Outcome:
        """Continue a failed workflow. If its function ended with the error of a failed step, this step runs again.

        It has a deadline only if `deadline_in` gives one, counted from when the broker has stored the command.
        """
        deadline = optional(wire_duration, "deadline_in", deadline_in)
        return await self._send("RetryWorkflow", tenant, workflow_id, timeout_seconds, deadlineIn=deadline)

    async def get(self, tenant: str, workflow_id: str, *, timeout_seconds: float = 10) -> WorkflowDetail | None:
        """Return a workflow with all its effects, or None if it does not exist. Reads every page."""
        pages = await self._connection.find_pages(tenant, "get-workflow", self._key(workflow_id), timeout_seconds)
        details = [WorkflowDetail.read(page) for page in pages]
        effects = [effect for detail in details for effect in detail.effects]
        return replace(details[-1], effects=effects) if details else None

    def list(
        self,
        tenant: str,
        *,
        status: WorkflowStatus | None = None,
        workflow_type: str | WorkflowType[Any, Any] | None = None,
        timeout_seconds: float = 10,
    ) -> AsyncIterator[Workflow]:
        """Iterate over the workflows of a tenant: open ones, and then those that have ended, each newest first.

        `status` and `workflow_type` filter them.
        """
        filters = {
            "status": optional(check_choice, "status", status, WorkflowStatus),
            "type": None if workflow_type is None else name_of_type(workflow_type),
        }
        return self._list("list-workflows", "workflows", Workflow, tenant, timeout_seconds, **filters)

    async def count(self, tenant: str, *, timeout_seconds: float = 10) -> WorkflowCounts:
        """Count the workflows of a tenant by status."""
        return WorkflowCounts.read(await self._connection.ask(tenant, "count-workflows", {}, timeout_seconds))

    def workers(self, tenant: str, *, timeout_seconds: float = 10) -> AsyncIterator[WorkerInfo]:
        """Iterate over the workers of a tenant that the service has heard of lately, in order of their ids."""
        return self._list("list-workers", "workers", WorkerInfo, tenant, timeout_seconds)

    @overload
    async def result(self, tenant: str, workflow_id: str, *, timeout_seconds: float | None = None) -> Any: ...

    @overload
    async def result(
        self,
        tenant: str,
        workflow_id: str,
        workflow_type: WorkflowType[Any, Result],
        *,
        timeout_seconds: float | None = None,
    ) -> Result: ...

    async def result(
        self,
        tenant: str,
        workflow_id: str,
        workflow_type: WorkflowType[Any, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Wait until a workflow ends, and return the result of its function, as the type that `workflow_type` declares.

        Raises `WorkflowEndedError` if it failed or was cancelled, LookupError if it does not exist, ValueError if the
        result has another type, and TimeoutError after `timeout_seconds`. While the connection is lost, or the service
        cannot answer, it goes on waiting.
        """
        check_tenant(tenant)
        check_identifier("workflow_id", workflow_id)
        seconds = optional(check_seconds, "timeout_seconds", timeout_seconds)
        kind = Any if workflow_type is None else returned_type(check_workflow_type(workflow_type).function)
        async with asyncio.timeout(seconds):
            while True:
                try:
                    result = await self._result(tenant, workflow_id)
                    return read_data(kind, result, "the result")
                except NoAnswerError:
                    await asyncio.sleep(_PAUSE_SECONDS)
                except QueryError as error:
                    if error.code not in _TRY_AGAIN:
                        raise
                    await asyncio.sleep(_PAUSE_SECONDS)

    def watch(self, tenant: str = "*") -> AsyncIterator[WorkflowCompleted | WorkflowFailed | WorkflowCancelled]:
        """Iterate over the events about ends of workflows from now on. See `Timers.watch`."""
        return self._connection.events(tenant, *_EVENTS)

    async def _result(self, tenant: str, workflow_id: str) -> Any:
        """Return the result of a workflow once it has ended. Looks at it first, and again after each event."""
        events = self._connection.events(tenant, *_EVENTS, about=self._key(workflow_id))
        following = asyncio.ensure_future(anext(events))
        try:
            while True:
                # `limit`: its effects, which may have 8 MiB, are not needed.
                detail = await self._find("get-workflow", WorkflowDetail, tenant, workflow_id, _QUERY_SECONDS, limit=1)
                if detail is None:
                    raise LookupError(f"there is no workflow {tenant}/{workflow_id}")
                if detail.workflow.status == "completed":
                    return detail.result
                if detail.workflow.status in {"failed", "cancelled"}:
                    raise WorkflowEndedError(detail.workflow, detail.failure)
                await asyncio.wait([following], timeout=LOOK_AGAIN_SECONDS)
                if following.done():
                    following.result()  # raises if the connection is lost
                    following = asyncio.ensure_future(anext(events))
        finally:
            following.cancel()
            await asyncio.wait([following])
            await events.aclose()  # a program that keeps the error would keep the watch


def _check_one(first: str, first_value: object, second: str, second_value: object) -> None:
    """Refuse two arguments that exclude each other."""
    if first_value is not None and second_value is not None:
        raise ValueError(f"{first} cannot be combined with {second}")
