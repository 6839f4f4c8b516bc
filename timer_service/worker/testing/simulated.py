"""Runs one workflow in memory, and skips the time in which nothing happens."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pydantic_core import from_json

from timer_service.client.checks import check_identifier, check_mapping, check_text, wire_duration, wire_instant
from timer_service.client.convert import read_data, returned_type
from timer_service.client.errors import WorkflowEndedError
from timer_service.client.names import WorkflowStatus
from timer_service.client.retry import Retry, wire_retry
from timer_service.client.workflow_models import WorkflowDetail
from timer_service.core.values.instant import format_instant, parse_instant
from timer_service.worker.definition import WorkflowFunction
from timer_service.worker.errors import NonDeterministicError
from timer_service.worker.names import Identity, check_name
from timer_service.worker.replay import Replay
from timer_service.worker.report import end_of_function
from timer_service.worker.task import RunningTask
from timer_service.worker.testing.steps import SimulatedSteps
from timer_service.worker.testing.stored import StoredWorkflow
from timer_service.worker.values import StoredEffect, to_milliseconds, write_result
from timer_service.workflows.messages import CancelWorkflow, SendToWorkflow, StartWorkflow, WorkflowPayload

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_NO_DATA: Any = None
_TENANT = "simulation"
_START = datetime(2030, 1, 1, tzinfo=UTC)
_ENDS_OF_FUNCTIONS = (None, "STEP_FAILED", "WORKFLOW_ERROR")
"""The codes of workflows whose function has ended. A completed one has none."""
_TINY_SECONDS = 1e-6
"""The clock of a task has seconds, as floats. An instant has come if less than this is missing."""


class SimulatedWorkflow(Generic[_In, _Out]):
    """A workflow in memory, for tests: without a broker, a service and a database, and in simulated time.

    ```python
    async def test_an_order_is_paid_and_approved():
        order_1 = SimulatedWorkflow(order, {"id": 1}, steps={"charge": "charge-1"})
        order_1.send("approval", True, after=timedelta(days=2))
        assert await order_1.result() == {"charge": "charge-1", "approved": True}
        assert order_1.elapsed == timedelta(days=2)
    ```

    The function runs as in a worker: it is replayed after each sleep and each wait, and once more after its end. The
    rules are those of the service. Sleeps, timeouts, delays of retries and deadlines take simulated time, and steps
    none, unless they await `sleep`. The delays of retries are random, but the same in each test.
    """

    def __init__(
        self,
        workflow: WorkflowFunction[_In, _Out],
        data: _In = _NO_DATA,
        *,
        steps: Mapping[str, Any] = MappingProxyType({}),
        retry: Retry | None = None,
        deadline_in: timedelta | None = None,
        workflow_id: str = "workflow-1",
        start_at: datetime = _START,
    ) -> None:
        """Start a workflow with the input `data`. Nothing runs before `run` or `result`.

        `steps` has what happens in place of steps, by their names: a function that is called with the arguments of the
        step, an exception that each attempt raises, or else the result. Other steps run. `retry` and `deadline_in` are
        those of `client.workflows.start`. Raises ValueError with the name of a wrong argument.
        """
        if not isinstance(workflow, WorkflowFunction):
            raise ValueError("workflow must be a function with the decorator @workflow")  # noqa: TRY004 - as all checks
        for name in check_mapping("steps", steps):
            check_name("each name in steps", name)
        self._function = workflow
        self._now = self._began = parse_instant(wire_instant("start_at", start_at))
        self._stored = StoredWorkflow(Random(0))  # noqa: S311 - the same in each test
        self._steps = SimulatedSteps(steps)
        self._task: RunningTask | None = None
        self._is_checked = False
        self._about = {"tenantId": _TENANT, "workflowId": check_identifier("workflow_id", workflow_id)}
        self._planned: list[tuple[int, WorkflowPayload]] = []
        fields: dict[str, Any] = {**self._about, "type": workflow.type, "input": _copy("data", data)}
        if retry is not None:
            fields["retry"] = wire_retry(retry)
        if deadline_in is not None:
            fields["deadlineIn"] = wire_duration("deadline_in", deadline_in)
        self._stored.handle(StartWorkflow.model_validate(fields, by_alias=True, by_name=False), self._now)

    @property
    def now(self) -> datetime:
        """The simulated time."""
        return datetime.fromtimestamp(self._now / 1000, UTC)

    @property
    def elapsed(self) -> timedelta:
        """The simulated time since the start."""
        return timedelta(milliseconds=self._now - self._began)

    @property
    def detail(self) -> WorkflowDetail:
        """The workflow with its effects, as `client.workflows.get` returns it."""
        return self._stored.detail(self._now)

    @property
    def status(self) -> WorkflowStatus:
        """The status of the workflow."""
        return self.detail.workflow.status

    def send(self, name: str, data: Any = None, *, after: timedelta = timedelta(0)) -> None:
        """Send a message to the workflow, `after` from the simulated time of this call."""
        fields = {**self._about, "name": check_name("name", name), "data": _copy("data", data)}
        self._plan(SendToWorkflow.model_validate(fields, by_alias=True, by_name=False), after)

    def cancel(self, reason: str | None = None, *, after: timedelta = timedelta(0)) -> None:
        """Cancel the workflow, `after` from the simulated time of this call."""
        fields = {**self._about, "reason": None if reason is None else check_text("reason", reason)}
        self._plan(CancelWorkflow.model_validate(fields, by_alias=True, by_name=False), after)

    async def sleep(self, duration: timedelta) -> None:
        """Let a step take simulated time. Await it in the function of a step, or in its stand-in."""
        await self._steps.sleep(self._now + to_milliseconds("duration", duration))

    async def run(self, duration: timedelta | None = None) -> WorkflowStatus:
        """Run the workflow until it has ended or only a message can continue it, or for a simulated time.

        Return its status. Raises `NonDeterministicError` if a replay does not repeat what the function did.
        """
        until = None if duration is None else self._now + to_milliseconds("duration", duration)
        await self._settle()
        while (at := self._next_at()) is not None and (until is None or at <= until):
            self._now = at
            await self._settle()
        if until is not None and self._stored.workflow.is_open:
            self._now = until
        return self.status

    async def result(self) -> _Out:
        """Run the workflow to its end, and return the result of its function.

        Raises `WorkflowEndedError` if it has failed or was cancelled, and RuntimeError if only a message can continue
        it.
        """
        await self.run()
        detail = self.detail
        if self._stored.workflow.is_open:
            waits = ", ".join(each.key for each in detail.effects if each.status == "open")
            raise RuntimeError(f"the workflow waits for a message that was not sent: {waits}")
        if self.status != "completed":
            raise WorkflowEndedError(detail.workflow, detail.failure)
        found: _Out = read_data(returned_type(self._function.function), detail.result, "the result")
        return found

    def _plan(self, command: WorkflowPayload, after: timedelta) -> None:
        """Store a command for later. Commands of one instant stay in the order of their calls."""
        self._planned.append((self._now + to_milliseconds("after", after), command))
        self._planned.sort(key=lambda each: each[0])

    def _next_at(self) -> int | None:
        """Return when something happens next; None if only a message can continue it, or if it has ended."""
        if not self._stored.workflow.is_open:
            return None
        planned = self._planned[0][0] if self._planned else None
        instants = (self._stored.next_at(self._now), planned, self._steps.next_at())
        return min((each for each in instants if each is not None), default=None)

    async def _settle(self) -> None:
        """Do all that happens at this instant, and check the replay if the workflow has ended."""
        while self._handle_commands() or await self._end_attempts() or self._advance():
            pass  # each may cause more of the others
        if not self._stored.workflow.is_open:
            self._check_replay()

    def _handle_commands(self) -> bool:
        """Handle the due commands and the deadline, and let the task know. Return whether a command was due."""
        due = [command for at, command in self._planned if at <= self._now]
        del self._planned[: len(due)]
        for command in due:
            self._stored.handle(command, self._now)
        self._stored.end_at_deadline(self._now)
        if self._task is not None:
            ended_waits = self._stored.renew(self._task.token, self._now)
            if ended_waits is None:
                self._task.end()
            else:
                self._task.waits_over(ended_waits, self._now / 1000)
        return bool(due)

    async def _end_attempts(self) -> bool:
        """Wait until every step sleeps or has ended, and let the task know. Return whether an attempt has ended."""
        ended = await self._steps.settle(self._now)
        for key, attempt in ended:
            if self._task is not None:
                self._task.step_ended(key, attempt, self._now / 1000)
        return bool(ended)

    def _advance(self) -> bool:
        """Claim the workflow if it is available, and do what its task wants. Return whether anything was done."""
        task, now = self._task, self._now / 1000
        if task is None:
            view = self._stored.claim(self._now)
            if view is None:
                return False
            self._task = task = RunningTask(view, self._function, _TENANT, lease_until=float("inf"))
            task.start(view["effects"], now)
            if task.mismatch is not None:
                raise task.mismatch
        self._steps.stop(task.take_steps_to_stop())
        if task.is_over:
            self._task = None
            return True
        begun = task.take_steps_to_start(now + _TINY_SECONDS)
        for effect in begun:
            self._steps.begin(effect, self._now)
        report = task.next_report(now + _TINY_SECONDS, is_draining=False)
        if report is not None:
            task.reported(self._stored.report(from_json(report.text), self._now), float("inf"), now)
        return bool(begun) or report is not None

    def _check_replay(self) -> None:
        """Replay the whole function once, and compare its end with the stored one, if the function itself has ended."""
        detail = self.detail
        is_end_of_function = self.status != "cancelled" and detail.workflow.code in _ENDS_OF_FUNCTIONS
        if self._is_checked or not is_end_of_function:
            return
        self._is_checked = True
        workflow = self._stored.workflow
        stored = [StoredEffect.read(each) for each in self._stored.effects(self._now)]
        identity = Identity(_TENANT, workflow.key.workflow_id, format_instant(workflow.created_at))
        replay = Replay(self._function, identity, detail.input, stored)
        try:
            finished = replay.advance().finished
        finally:
            replay.close()
        end = {} if finished is None else from_json(end_of_function(finished))
        if self.status == "completed":
            is_same, expected = end.get("result") == detail.result, f"the result {detail.result!r}"
        else:
            is_same, expected = "error" in end, "an error"
        if not is_same:
            raise NonDeterministicError(expected, f"another end: {end}")


def _copy(argument: str, value: Any) -> Any:
    """Return a value as the service decodes it. Raises ValueError with the name of the argument if it is not JSON."""
    return from_json(write_result(value, argument))
