"""Whatever the code of a user raises, one step or one workflow fails with a clear error, and the worker goes on."""

import asyncio
import concurrent.futures
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.clock import in_virtual_time
from tests.harness.workers import virtually, worker
from tests.harness.workflow_service import MemoryService
from timer_service.worker import Context, Interrupted, PermanentError, Retry, RetryAfter, StepFailed, loop, workflow
from timer_service.worker.errors import MAX_TEXT_BYTES, ErrorText
from timer_service.worker.report import end_of_function
from timer_service.worker.testing import SimulatedWorkflow
from timer_service.worker.values import Finished


class _NoText(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class _ExitText(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(3)


class _NoDelay(RetryAfter):
    def __init__(self) -> None:
        """Forget the delay."""


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "StopIteration": (lambda: StopIteration("x"), "StopIteration"),
    "StopAsyncIteration": (lambda: StopAsyncIteration("x"), "StopAsyncIteration: x"),
    "GeneratorExit": (lambda: GeneratorExit("x"), "GeneratorExit: x"),
    "TimeoutError": (lambda: TimeoutError("x"), "TimeoutError: x"),
    "SystemExit": (lambda: SystemExit("x"), "SystemExit: x"),
    "KeyboardInterrupt": (lambda: KeyboardInterrupt("x"), "KeyboardInterrupt: x"),
    "CancelledError": (lambda: asyncio.CancelledError("x"), "CancelledError"),
    "CancelledError of a thread": (lambda: concurrent.futures.CancelledError("x"), "CancelledError"),
    "Interrupted": (lambda: Interrupted("x"), "Interrupted: x"),
    "a group": (lambda: ExceptionGroup("two", [ValueError("x"), OSError("y")]), "ValueError: x; OSError: y"),
    "a huge text": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
    "a surrogate": (lambda: ValueError("\ud800"), "ValueError: ?"),
    "no text": (_NoText, "_NoText: (the text of this error cannot be shown"),
    "a text that exits": (_ExitText, "_ExitText: (the text of this error cannot be shown"),
    "no delay": (_NoDelay, "AttributeError"),
}


@workflow("other")
async def other(ctx: Context, _: Any) -> Any:
    return await ctx.step("work", asyncio.sleep, 0.5, "worked")


async def run_beside_another(function: Any) -> Any:
    """Run a workflow beside another one, and return how it ended. The other one must not be disturbed."""
    service = MemoryService(retry_seconds=0)
    row, healthy = service.start("a", "bad", max_attempts=2), service.start("b", "other")
    async with worker(service, workflow("bad")(function), other), asyncio.timeout(5):
        await service.until_ended()
    assert healthy.end["result"] == "worked"
    return row.end


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "in a thread"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_a_step(name: str, *, in_thread: bool) -> None:
    """The step fails, and the function gets StepFailed with the type and the text of the error."""
    make, text = ERRORS[name]

    async def run() -> None:
        raise make()

    step = (lambda: _raise(make())) if in_thread else run

    async def function(ctx: Context, _: Any) -> Any:
        try:
            await ctx.step("bad", step, retry=Retry(max_attempts=1))
        except StepFailed as error:
            return str(error)

    simulated = SimulatedWorkflow(workflow("bad")(function))
    assert text in asyncio.run(simulated.result())


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_a_workflow_function(name: str) -> None:
    """The workflow fails with the error of its function."""
    make, _ = ERRORS[name]

    async def function(ctx: Context, _: Any) -> Any:
        await ctx.step("work", asyncio.sleep, 0)
        raise make()

    end = in_virtual_time(lambda: run_beside_another(function))
    assert end["action"] == "fail"
    assert len(end["error"]["message"].encode()) <= MAX_TEXT_BYTES


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "in a thread"])
async def test_errors_of_a_step_in_a_group(*, in_thread: bool) -> None:
    """A group has no further attempt if it has a PermanentError, else the longest delay of its RetryAfter errors.

    The cause of an error does not count.
    """
    minute, permanent = timedelta(minutes=1), PermanentError("declined")
    groups: list[tuple[list[Exception], int, timedelta]] = [
        ([permanent], 1, timedelta(0)),
        ([RetryAfter(minute), ExceptionGroup("inner", [permanent])], 1, timedelta(0)),
        ([ValueError(), ExceptionGroup("inner", [RetryAfter(minute), RetryAfter(3 * minute)])], 3, 6 * minute),
    ]

    async def grouped(errors: list[Exception]) -> None:
        async with asyncio.TaskGroup() as group:
            for each in errors:
                group.create_task(raised(each))

    async def raised(error: Exception) -> None:
        raise error

    def in_a_thread(errors: list[Exception]) -> None:
        raise ExceptionGroup("outer", errors)

    for errors, attempts, elapsed in groups:

        async def function(ctx: Context, _: Any, errors: Any = errors) -> Any:
            with suppress(StepFailed):
                await ctx.step("bad", in_a_thread if in_thread else grouped, errors, retry=Retry(max_attempts=3))

        simulated = SimulatedWorkflow(workflow("bad")(function))
        assert await simulated.run() == "completed"
        (effect,) = simulated.detail.effects
        assert (effect.failures, simulated.elapsed) == (attempts, elapsed)

    async def caused(ctx: Context, _: Any) -> Any:
        def fail() -> None:
            raise ValueError from permanent

        await ctx.step("bad", fail, retry=Retry(max_attempts=3, first=timedelta(0)))

    simulated = SimulatedWorkflow(workflow("bad")(caused))
    assert (await simulated.run(), simulated.detail.effects[0].failures) == ("failed", 3)


def test_the_step_that_ended_a_function() -> None:
    """The service gets the key of the first step that has failed, unless the function has another error, too."""
    first, second = (StepFailed(key, ErrorText("", "")) for key in ("a", "b"))
    for errors, step in (([first, second], "a"), ([first, ValueError()], None)):
        end = json.loads(end_of_function(Finished(error=ExceptionGroup("two", errors))))
        assert end.get("step") == step


def test_a_function_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that runs on and on fails. If it is interrupted, it is left behind. The worker goes on."""
    monkeypatch.setattr(loop, "MOST_CALLBACKS", 1000)

    async def function(ctx: Context, _: Any) -> Any:
        try:
            await ctx.sleep(timedelta(seconds=1))
        finally:
            while True:
                await asyncio.sleep(0)

    end = in_virtual_time(lambda: run_beside_another(function))
    assert end["error"]["type"] == "EndlessLoopError"


@virtually
async def test_a_fault_of_the_worker_ends_one_task() -> None:
    """If the worker itself fails to handle a task, this task runs again after its lease. The others go on."""

    class Broken(MemoryService):
        async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
            reply = await super().request(name, body, timeout_seconds)
            for each in reply.get("reports", ()):
                if each["workflowId"] == "a" and faults:
                    faults.pop()
                    each["failedSteps"] = "nonsense"
            return reply

    faults = [1]
    service = Broken()
    rows = service.start("a", "other"), service.start("b", "other")
    async with worker(service, other), asyncio.timeout(60):
        await service.until_ended()
    assert [row.status for row in rows] == ["completed", "completed"]


@virtually
async def test_a_fault_outside_a_task_ends_the_worker() -> None:
    """If a part of the worker fails, the worker raises its error, so that a supervisor can start the worker again."""

    class Broken(MemoryService):
        async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
            if name == "renew-tasks":
                raise RuntimeError("a bug")
            return await super().request(name, body, timeout_seconds)

    service = Broken()
    service.start("a", "other")
    with pytest.raises(RuntimeError, match="a bug"):
        async with worker(service, other, lease_seconds=1):
            await asyncio.sleep(60)


@virtually
async def test_a_task_that_cannot_be_read() -> None:
    """A task, or a page of effects, in a form that the worker does not know does not end the worker."""

    class Odd(MemoryService):
        async def request(self, name: str, body: bytes, timeout_seconds: float) -> Any:
            reply = await super().request(name, body, timeout_seconds)
            for each in reply.get("tasks", ()) if name == "poll-tasks" else ():
                if each["workflowId"] == "a":
                    del each["startedAt"]
                elif each["workflowId"] == "b":
                    each["cursor"] = "1"
            return {} if name == "get-effects" else reply

    service = Odd()
    for each in ("a", "b", "c"):
        service.start(each, "other")
    async with worker(service, other), asyncio.timeout(200):
        await service.until_ended("c")
        await service.until(lambda: min(service.rows[each].attempt for each in ("a", "b")) == 2)
        for each in ("a", "b"):
            service.cancel(each)


async def test_the_log_has_the_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    """The log says where a step and a function have failed. It has no text of an error, which may have values."""

    def charge(card: str) -> None:
        raise LookupError(card)

    @workflow("order", retry=Retry(max_attempts=1))
    async def order(ctx: Context, card: str) -> None:
        with suppress(StepFailed):
            await ctx.step("charge", charge, card)
        raise KeyError(card)

    caplog.set_level("INFO", "timer_service.worker")
    await SimulatedWorkflow(order, "4711 0815").run()
    step, end = [each.getMessage() for each in caplog.records]
    assert step == "an attempt of the step charge has failed: LookupError"
    assert end == "the workflow workflow-1 fails: KeyError"
    where = "(its text may have values of users; `timer-service workflows get` shows it)"
    lines = caplog.text.splitlines()
    for last_call, text in [("    raise LookupError(card)", "LookupError"), ("    raise KeyError(card)", "KeyError")]:
        assert lines[lines.index(last_call) + 1].endswith(f": {text} {where}")
    assert "4711" not in caplog.text
