"""One task of a worker, without a service."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from timer_service.worker import Context, Retry, workflow
from timer_service.worker.errors import ErrorText
from timer_service.worker.steps import Attempt
from timer_service.worker.task import RunningTask

VIEW = {"workflowId": "order-1", "token": "0" * 16, "startedAt": "2027-01-01T00:00:00Z"}


async def work() -> None:
    """Be the function of a step."""


@workflow("order", retry=Retry(first=timedelta(seconds=1)))
async def order(ctx: Context, _: Any) -> Any:
    return await ctx.step("pay", work)


@pytest.fixture
def task() -> RunningTask:
    """A task with a step whose first attempt has failed, and may start again at 10.5. It parks at 10."""
    task = RunningTask(VIEW, order, "acme", lease_until=100)
    task.start([], now=10)
    assert [each.key for each in task.take_steps(10)] == ["pay"]
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
    assert list(task.take_steps(11)) == []
    task.reported({"outcome": "parked"}, lease_until=100, now=11)
    assert (task.is_over, list(task.take_steps(11)), list(task.take_dropped())) == (True, [], [])


def test_a_step_starts_when_a_park_is_resumed(task: RunningTask) -> None:
    """If the service says that the task goes on, the attempt starts then."""
    assert list(task.take_steps(11)) == []
    task.reported({"outcome": "resumed"}, lease_until=100, now=11)
    assert [each.key for each in task.take_steps(11)] == ["pay"]


@workflow("impatient")
async def impatient(ctx: Context, _: Any) -> Any:
    slow = asyncio.ensure_future(ctx.step("slow", work))
    await ctx.sleep(timedelta(seconds=1))
    slow.cancel()
    return await ctx.wait_for("go")


def test_the_end_of_a_wait_from_before_is_known() -> None:
    """A worker that gets a task with an open sleep asks for its end by its own clock, also while a step runs."""
    task = RunningTask(VIEW, impatient, "acme", lease_until=100)
    task.start([{"key": "sleep", "kind": "sleep", "status": "open", "overInMs": 1500}], now=10)
    assert [each.key for each in task.take_steps(10)] == ["slow"]
    assert (action(task, 11), task.wake_at(11)) == (None, 11.5)
    assert action(task, 11.5) == "continue"


STORED = [
    {"key": "sleep", "kind": "sleep", "status": "done", "seq": 1},
    {"key": "slow", "kind": "step", "status": "open", "failures": 1, "startInMs": 0},
]


def test_a_stored_step_that_a_replay_drops_is_settled() -> None:
    """If the function cancels an open step during the replay, the next report fails it. Else no park would ever end."""
    task = RunningTask(VIEW, impatient, "acme", lease_until=100)
    task.start(STORED, now=10)
    assert list(task.take_steps(10)) == []
    report = task.next_report(10, is_draining=False)
    assert report is not None
    (step,) = json.loads(report.text)["steps"]
    assert (step["key"], step["attempt"], step["retryable"]) == ("slow", 2, False)
    task.reported({"outcome": "recorded", "failedSteps": [{"key": "slow"}]}, lease_until=100, now=10)
    report = task.next_report(10, is_draining=False)
    assert report is not None
    assert json.loads(report.text)["seen"] == [{"key": "slow", "seq": 2}]


@pytest.mark.parametrize("status", ["open", "failed", "done"])
def test_a_step_that_the_code_no_longer_has(status: str) -> None:
    """A stored step that the function does not ask for ends the task. The release names it, and what was found."""
    task = RunningTask(VIEW, order, "acme", lease_until=100)
    task.start([{"key": "charge", "kind": "step", "status": status, "failures": 1}], now=10)
    report = task.next_report(10, is_draining=False)
    assert report is not None
    then = json.loads(report.text)["then"]
    assert (then["action"], then["reason"]) == ("release", "non_deterministic")
    assert "the step charge" in then["error"]
    assert "the step pay" in then["error"]
