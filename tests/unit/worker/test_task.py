"""One task of a worker, without a service."""

import asyncio
import json
from collections import deque
from datetime import timedelta
from typing import Any

import pytest

from timer_service.worker import Context, Retry, workflow
from timer_service.worker.errors import ErrorText
from timer_service.worker.report import Item, take_part
from timer_service.worker.steps import Attempt
from timer_service.worker.task import RunningTask

VIEW = {"workflowId": "order-1", "token": "0" * 16, "startedAt": "2027-01-01T00:00:00Z"}


async def work() -> Any:
    """Be the function of a step."""


async def work_on(_: Any) -> Any:
    """Be the function of a step with an argument."""


@workflow("order", retry=Retry(first=timedelta(seconds=1)))
async def order(ctx: Context, _: Any) -> Any:
    return await ctx.step("pay", work)


@pytest.fixture
def task() -> RunningTask:
    """A task with a step whose first attempt has failed, and may start again at 10.5. It parks at 10."""
    task = RunningTask(VIEW, order, "acme", lease_until=100)
    task.start([], now=10)
    assert [each.key for each in task.take_steps_to_start(10)] == ["pay"]
    task.step_ended("pay", Attempt(error=ErrorText("ValueError", "no")), now=10)
    assert action(task, 10) == "continue"
    failed = {"key": "pay", "startInMs": 500}
    task.reported({"outcome": "recorded", "failedSteps": [failed]}, lease_until=100, now=10)
    assert action(task, 10) == "park"
    return task


def action(task: RunningTask, now: float) -> str | None:
    report = task.next_report(now, is_draining=False)
    return None if report is None else str(json.loads(report.text)["then"]["action"])


def test_no_step_starts_while_the_task_parks(task: RunningTask) -> None:
    """If an attempt is due before the service has answered a park, it does not start: the task may be over."""
    assert list(task.take_steps_to_start(11)) == []
    task.reported({"outcome": "parked"}, lease_until=100, now=11)
    assert (task.is_over, list(task.take_steps_to_start(11)), list(task.take_steps_to_stop())) == (True, [], [])


def test_a_step_starts_when_a_park_is_resumed(task: RunningTask) -> None:
    """If the service says that the attempt may start now, it starts, although it may not by the clock of the worker."""
    ready = [{"key": "pay", "startInMs": 0}]
    task.reported({"outcome": "resumed", "failedSteps": ready}, lease_until=100, now=10.25)
    assert [each.key for each in task.take_steps_to_start(10.25)] == ["pay"]


def test_no_step_starts_early_when_a_park_is_resumed(task: RunningTask) -> None:
    """If the reply has no room for the wait that is over, the worker asks again, and no step starts before its time."""
    task.reported({"outcome": "resumed"}, lease_until=100, now=10.25)
    assert list(task.take_steps_to_start(10.25)) == []
    assert action(task, 10.25) == "park"


def test_the_delay_of_an_attempt_goes_on_with_another_worker() -> None:
    """A worker that gets a task with a failed attempt starts the next one when the service says, not earlier."""
    task = RunningTask(VIEW, order, "acme", lease_until=100)
    task.start([{"key": "pay", "kind": "step", "status": "open", "failures": 1, "startInMs": 5000}], now=10)
    assert (list(task.take_steps_to_start(14.9)), task.wake_at(10)) == ([], 15)
    assert [each.failures for each in task.take_steps_to_start(15)] == [1]


def test_a_report_with_many_brackets_is_split() -> None:
    """The service limits the arrays and objects of a request, so they count more than their bytes."""
    assert [len(take_part(deque([Item(step=each * 60_000)] * 2))) for each in "[{x"] == [1, 1, 2]


def test_a_late_outcome_does_not_shorten_the_lease(task: RunningTask) -> None:
    """The lease was renewed after the report was sent, and ends when the renewal says."""
    task.lease_until = 130
    task.reported({"outcome": "resumed"}, lease_until=100, now=110)
    assert task.lease_until == 130


def test_a_stored_step_that_the_function_drops_at_once_is_settled() -> None:
    """A step with a failed attempt is cancelled by the changed function in the turn that begins it: it is reported."""

    @workflow("dropped")
    async def dropped(ctx: Context, _: Any) -> None:
        task = asyncio.ensure_future(ctx.step("pay", work))
        await asyncio.sleep(0)
        task.cancel()
        await ctx.wait_for("go")

    task = RunningTask(VIEW, dropped, "acme", lease_until=100)
    stored: list[dict[str, Any]] = [
        {"key": "pay", "kind": "step", "status": "open", "failures": 1, "startInMs": 0},
        {"key": "go", "kind": "message", "status": "open"},
    ]
    task.start(stored, now=10)
    assert list(task.take_steps_to_start(10)) == []
    report = task.next_report(10, is_draining=False)
    assert report is not None
    (step,) = json.loads(report.text)["steps"]
    assert (step["key"], step["attempt"], step["retryable"]) == ("pay", 2, False)
    task.reported({"outcome": "recorded", "failedSteps": [{"key": "pay"}]}, lease_until=100, now=10)
    assert action(task, 10) == "park"


def test_a_message_while_the_task_parks() -> None:
    """A step that the function calls meanwhile starts if the task goes on, and only then; the next task repeats it."""

    @workflow("parks")
    async def parks(ctx: Context, _: Any) -> Any:
        return await ctx.step("pay", work_on, await ctx.wait_for("go"))

    over = {"key": "go", "kind": "message", "status": "done", "result": 1}
    for outcome, started in (("parked", []), ("resumed", ["pay"])):
        task = RunningTask(VIEW, parks, "acme", lease_until=100)
        task.start([], now=10)
        assert action(task, 10) == "park"
        task.waits_over([over], now=10)
        assert list(task.take_steps_to_start(10)) == []
        task.reported({"outcome": outcome, "over": [over]}, lease_until=100, now=10)
        assert list(task.take_steps_to_start(10)) == []  # the number of the message is not stored yet
        if outcome == "resumed":
            assert action(task, 10) == "continue"
            task.reported({"outcome": "recorded"}, lease_until=100, now=10)
        assert [each.key for each in task.take_steps_to_start(10)] == started
        assert task.is_over == (outcome == "parked")


@workflow("impatient")
async def impatient(ctx: Context, _: Any) -> Any:
    slow = asyncio.ensure_future(ctx.step("slow", work))
    await ctx.sleep(timedelta(seconds=1))
    slow.cancel()
    return await ctx.wait_for("go")


def test_a_step_that_is_dropped_while_its_failure_is_reported() -> None:
    """A step that the function cancels before the service grants another attempt does not start again: it fails."""
    task = RunningTask(VIEW, impatient, "acme", lease_until=100)
    task.start([], now=10)
    assert [each.key for each in task.take_steps_to_start(10)] == ["slow"]
    task.step_ended("slow", Attempt(error=ErrorText("ValueError", "no")), now=10)
    assert action(task, 10) == "continue"
    task.waits_over([{"key": "sleep", "kind": "sleep", "status": "done"}], now=11)
    failed = {"key": "slow", "startInMs": 0}
    task.reported({"outcome": "recorded", "failedSteps": [failed]}, lease_until=100, now=11)
    assert list(task.take_steps_to_start(11)) == []
    report = task.next_report(11, is_draining=False)
    assert report is not None
    (step,) = json.loads(report.text)["steps"]
    assert (step["key"], step["attempt"], step["retryable"]) == ("slow", 2, False)


def test_the_end_of_the_function_stops_its_steps() -> None:
    """A step that runs when the function returns is stopped, and its end is not reported."""

    @workflow("ends")
    async def ends(ctx: Context, _: Any) -> None:
        tasks = [asyncio.ensure_future(each) for each in (ctx.step("slow", work), ctx.wait_for("go"))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    task = RunningTask(VIEW, ends, "acme", lease_until=100)
    task.start([], now=10)
    assert [each.key for each in task.take_steps_to_start(10)] == ["slow"]
    assert action(task, 10) == "continue"
    task.waits_over([{"key": "go", "kind": "message", "status": "done"}], now=11)
    assert list(task.take_steps_to_stop()) == ["slow"]
    task.step_ended("slow", Attempt(), now=11)
    task.reported({"outcome": "recorded"}, lease_until=100, now=11)
    assert action(task, 11) == "complete"


def test_the_end_of_a_wait_from_before_is_known() -> None:
    """A worker that gets a task with an open sleep asks for its end by its own clock, also while a step runs."""
    task = RunningTask(VIEW, impatient, "acme", lease_until=100)
    task.start([{"key": "sleep", "kind": "sleep", "status": "open", "overInMs": 1500}], now=10)
    assert [each.key for each in task.take_steps_to_start(10)] == ["slow"]
    assert (action(task, 11), task.wake_at(11)) == (None, 11.5)
    assert action(task, 11.5) == "continue"
    task.reported({"outcome": "recorded"}, lease_until=100, now=11.5)  # it is not over by the clock of the service
    assert (action(task, 11.5), task.wake_at(11.5), action(task, 11.6)) == (None, 11.6, "continue")
