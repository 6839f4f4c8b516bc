"""A workflow in memory and in simulated time."""

import asyncio
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from timer_service.client import WorkflowEndedError
from timer_service.worker import (
    Context,
    NonDeterministicError,
    PermanentError,
    Retry,
    RetryAfter,
    StepFailed,
    WorkflowFunction,
    workflow,
)
from timer_service.worker.testing import SimulatedWorkflow

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


async def never(*_: Any) -> Any:
    raise AssertionError("the test has a stand-in")


@workflow("order", retry=Retry(max_attempts=3))
async def order(ctx: Context, data: Any) -> Any:
    charge = await ctx.step("charge", never, data["id"])
    await ctx.sleep(DAY)
    try:
        approved = await ctx.wait_for("approval", timeout=3 * DAY)
    except TimeoutError:
        return {"refunded": await ctx.step("refund", never, charge)}
    return {"charge": charge, "approved": approved}


@dataclass(frozen=True)
class Order:
    id: UUID
    placed_at: datetime


@workflow("typed")
async def typed(ctx: Context, order: Order) -> tuple[Order, ...]:
    placed_at: datetime = await ctx.step("look", look, order)
    await ctx.sleep(DAY)
    other = await ctx.wait_for("other", Order)
    return order, replace(other, placed_at=placed_at)


def look(order: Order) -> datetime:
    return order.placed_at + DAY


async def test_types_of_an_order() -> None:
    """The input, the result of a step, a message and the result have the declared types, also in each replay."""
    placed, other = (Order(UUID(int=number), datetime(2030, 1, number, tzinfo=UTC)) for number in (1, 2))
    simulated = SimulatedWorkflow(typed, placed)
    simulated.send("other", other)
    assert await simulated.result() == (placed, replace(other, placed_at=other.placed_at))


@pytest.mark.parametrize(
    ("data", "message", "steps", "error"),
    [
        ({"id": 1}, None, {}, "the input is no Order: id: UUID.*; placed_at: Field required"),
        (None, None, {"look": "yesterday"}, "the result of the step look is no datetime: Input should be a valid "),
        (None, [], {}, "the message other is no Order: Input should be "),
    ],
)
async def test_data_of_another_form(data: Any, message: Any, steps: dict[str, Any], error: str) -> None:
    """Data that do not fit the declared type are an error of the function, which names what is wrong."""
    simulated = SimulatedWorkflow(typed, data or Order(UUID(int=1), datetime(2030, 1, 1, tzinfo=UTC)), steps=steps)
    simulated.send("other", message)
    with pytest.raises(WorkflowEndedError, match=f"WORKFLOW_ERROR: ValueError: {error}"):
        await simulated.result()


def as_workflow(function: Any) -> WorkflowFunction[Any, Any]:
    return workflow("test")(function)


async def test_an_order() -> None:
    """Days pass in no time. The message comes while the workflow sleeps, and is taken later."""
    simulated = SimulatedWorkflow(order, {"id": 1}, steps={"charge": "charge-1"})
    simulated.send("approval", data=True, after=HOUR)
    assert await simulated.result() == {"charge": "charge-1", "approved": True}
    assert (simulated.elapsed, simulated.status) == (DAY, "completed")
    assert [(each.key, each.status, each.seq) for each in simulated.detail.effects] == [
        ("charge", "done", 1),
        ("sleep", "done", 2),
        ("approval", "done", 3),
    ]


async def test_messages_come_in_the_order_of_their_instants() -> None:
    """A message that is sent later in the test, but for an earlier instant, comes first."""

    @as_workflow
    async def two(ctx: Context, _: Any) -> Any:
        return [await ctx.wait_for("go"), await ctx.wait_for("go")]

    simulated = SimulatedWorkflow(two)
    simulated.send("go", 2, after=2 * HOUR)
    simulated.send("go", 1, after=HOUR)
    assert await simulated.run(2 * HOUR) == "completed"  # also what happens at the end of the time
    assert simulated.detail.result == [1, 2]


async def test_part_of_the_time() -> None:
    """A test can run the workflow for a while, look at it, and send a message then."""
    simulated = SimulatedWorkflow(order, {"id": 1}, steps={"charge": 7}, start_at=datetime(2027, 3, 1, tzinfo=UTC))
    assert await simulated.run(HOUR) == "waiting"
    assert simulated.now == datetime(2027, 3, 1, 1, tzinfo=UTC)
    assert simulated.detail.workflow.due_at == datetime(2027, 3, 2, tzinfo=UTC)
    assert await simulated.run(2 * DAY) == "waiting"
    simulated.send("approval", data="late")
    assert (await simulated.result())["approved"] == "late"
    assert simulated.elapsed == 2 * DAY + HOUR


async def test_a_step_is_tried_again() -> None:
    """A stand-in can fail first. The delays between the attempts are simulated, and the same in each run."""
    elapsed = set()
    for _ in range(2):
        charge = Mock(side_effect=[OSError("down"), RetryAfter(HOUR, "busy"), "charge-1"])
        simulated = SimulatedWorkflow(order, {"id": 1}, steps={"charge": charge})
        simulated.send("approval")
        assert await simulated.result() == {"charge": "charge-1", "approved": None}
        elapsed.add(simulated.elapsed)
        assert charge.call_count == 3
        assert simulated.detail.effects[0].failures == 2
    assert len(elapsed) == 1
    assert DAY + HOUR <= elapsed.pop() < DAY + HOUR + timedelta(seconds=1)


@pytest.mark.parametrize("stand_in", [PermanentError("no card"), PermanentError])
async def test_a_step_that_fails(stand_in: Any) -> None:
    """An exception in place of a step is raised by each attempt. Its workflow has failed with it."""
    simulated = SimulatedWorkflow(order, {"id": 1}, steps={"charge": stand_in})
    with pytest.raises(WorkflowEndedError, match="PermanentError") as raised:
        await simulated.result()
    assert (raised.value.workflow.code, raised.value.workflow.step) == ("STEP_FAILED", "charge")


async def test_steps_that_take_time() -> None:
    """A step takes simulated time if it awaits `sleep`. Others start and end meanwhile, also sleeps and messages."""

    @as_workflow
    async def race(ctx: Context, _: Any) -> Any:
        slow = asyncio.ensure_future(ctx.step("slow", never))
        first = await asyncio.gather(ctx.step("quick", never), ctx.wait_for("go"))
        tasks = [slow, asyncio.ensure_future(ctx.sleep(5 * HOUR))]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        return [*first, slow in done]

    async def slow() -> str:
        try:
            await simulated.sleep(9 * HOUR)
        finally:
            stopped.append(simulated.elapsed)
        return "slow"

    async def quick() -> str:
        await simulated.sleep(HOUR)
        return "quick"

    stopped: list[timedelta] = []
    simulated = SimulatedWorkflow(race, steps={"slow": slow, "quick": quick})
    simulated.send("go", 7, after=2 * HOUR)
    assert await simulated.result() == ["quick", 7, False]
    await asyncio.sleep(0)
    assert (simulated.elapsed, stopped) == (7 * HOUR, [7 * HOUR])


async def test_the_timeout_of_a_step() -> None:
    """The timeout of a step is simulated, too."""

    @as_workflow
    async def function(ctx: Context, _: Any) -> Any:
        return await ctx.step("slow", never, timeout=HOUR, retry=Retry(max_attempts=2, first=timedelta(0)))

    async def slow() -> None:
        await simulated.sleep(DAY)

    simulated = SimulatedWorkflow(function, steps={"slow": slow})
    with pytest.raises(WorkflowEndedError, match=r"TimeoutError: no result within 3600\.0 s"):
        await simulated.result()
    assert simulated.elapsed == 2 * HOUR


async def test_a_step_that_ignores_its_timeout() -> None:
    """The attempt ends at its timeout, and the next one is not disturbed by what the first one does later."""
    calls: list[int] = []

    async def charge(*_: Any) -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            with suppress(asyncio.CancelledError):
                await simulated.sleep(HOUR)
            while True:
                with suppress(asyncio.CancelledError):
                    await simulated.sleep(HOUR)
        await simulated.sleep(timedelta(seconds=30))
        return "charged"

    @workflow("patient")
    async def patient(ctx: Context, _: Any) -> Any:
        retry = Retry(first=timedelta(0))
        return [
            await ctx.step("charge", never, timeout=timedelta(minutes=1), retry=retry),
            await ctx.wait_for("never", timeout=DAY),
        ]

    simulated = SimulatedWorkflow(patient, steps={"charge": charge})
    with pytest.raises(WorkflowEndedError, match="TimeoutError: no message"):
        await simulated.result()
    assert (simulated.detail.effects[0].failures, simulated.detail.effects[0].result) == (1, "charged")
    assert simulated.elapsed == DAY + timedelta(seconds=90)


async def test_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    """Each line is logged once, whatever the function does before it parks, with the workflow and the step.

    `is_replaying` says when the logger is silent. Lines in `finally` are not logged at a park.
    """
    replays: list[bool] = []

    def work(ctx: Context) -> None:
        ctx.logger.info("work %s", ctx.is_replaying)

    @workflow("logs", retry=Retry(first=timedelta(0), max_attempts=2))
    async def logs(ctx: Context, _: Any) -> None:
        replays.append(ctx.is_replaying)
        ctx.logger.info("begin", extra={"more": 1})
        try:
            await ctx.sleep(DAY)
            ctx.logger.info("slept")
            with suppress(StepFailed):
                await ctx.step("fail", fail, ctx)
            await ctx.step("work", work, ctx)
            ctx.logger.warning("worked")
            await ctx.sleep(DAY)
        finally:
            ctx.logger.info("end")

    def fail(ctx: Context) -> None:
        ctx.logger.info("fail")
        raise ValueError

    caplog.set_level("INFO", __name__)
    assert await SimulatedWorkflow(logs).run() == "completed"
    lines: list[Any] = [each for each in caplog.records if each.name == __name__]
    texts = ["begin", "slept", "fail", "fail", "work False", "worked", "end"]
    assert [each.getMessage() for each in lines] == texts
    assert {(each.tenant, each.workflow_id) for each in lines} == {("simulation", "workflow-1")}
    assert [getattr(each, "step", None) for each in lines] == [None, None, "fail", "fail", "work", None, None]
    assert (lines[0].more, lines[0].funcName, replays[0], {*replays[1:]}) == (1, "logs", False, {True})


async def test_a_cancel() -> None:
    """A cancelled workflow stops its step."""

    async def charge(_: int) -> None:
        await simulated.sleep(DAY)

    simulated = SimulatedWorkflow(order, {"id": 1}, steps={"charge": charge})
    simulated.cancel("out of stock", after=HOUR)
    with pytest.raises(WorkflowEndedError, match="cancelled: out of stock"):
        await simulated.result()
    assert simulated.elapsed == HOUR
    simulated.send("approval")
    assert await simulated.run() == "cancelled"


async def test_a_deadline() -> None:
    """A workflow fails at its deadline."""
    simulated = SimulatedWorkflow(order, {"id": 1}, steps={"charge": 1}, deadline_in=2 * DAY)
    with pytest.raises(WorkflowEndedError, match="DEADLINE"):
        await simulated.result()
    assert simulated.elapsed == 2 * DAY


async def test_a_message_that_never_comes() -> None:
    """A workflow that waits for ever is no hanging test."""

    @as_workflow
    async def waits(ctx: Context, _: Any) -> Any:
        return await ctx.wait_for("approval")

    simulated = SimulatedWorkflow(waits)
    with pytest.raises(RuntimeError, match="waits for a message that was not sent: approval"):
        await simulated.result()
    assert simulated.status == "parked"
    simulated.send("approval", 1)
    assert await simulated.result() == 1


def clocked(when: str) -> WorkflowFunction[Any, Any]:
    """Return a function that depends on something other than its context, after a sleep or at its end."""

    @as_workflow
    async def function(ctx: Context, _: Any) -> Any:
        runs.append(1)
        if when == "step":
            await ctx.step(f"step {len(runs)}", never)
            await ctx.sleep(DAY)
        else:
            await ctx.step("step 1", never)
        return len(runs)

    runs: list[int] = []
    return function


@pytest.mark.parametrize(
    ("when", "text"),
    [("step", "expected the step step 1; found the step step 2"), ("end", "expected the result 1; found another end")],
)
async def test_a_function_that_does_not_repeat_itself(when: str, text: str) -> None:
    """A function that a replay cannot repeat is found, also if the difference is in its result."""
    simulated = SimulatedWorkflow(clocked(when), steps={"step 1": 1, "step 2": 1})
    with pytest.raises(NonDeterministicError, match=text):
        await simulated.result()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"workflow": never}, "workflow must be a function with the decorator @workflow"),
        ({"data": b"1"}, "data cannot be stored as JSON: bytes are not JSON"),
        ({"data": "x" * 70_000}, "data has 70002 bytes of JSON; the limit is 65536"),
        ({"steps": ["charge"]}, "steps must be a dict"),
        ({"steps": {"charge:1": 1}}, "each name in steps must be 1 to 100 characters, without colons"),
        ({"retry": 3}, "retry must be a Retry"),
        ({"deadline_in": 3}, "deadline_in must be a timedelta"),
        ({"workflow_id": ""}, "workflow_id must be 1 to 200 characters"),
        ({"start_at": datetime(2030, 1, 1)}, "start_at must have a timezone"),  # noqa: DTZ001 - the wrong argument
    ],
)
def test_wrong_arguments_of_a_simulation(arguments: dict[str, Any], text: str) -> None:
    """A wrong argument raises a ValueError that begins with its name."""
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        SimulatedWorkflow(**{"workflow": order, **arguments})


async def test_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests in docs/workflows.md pass, with the workflow of the tutorial."""
    docs = Path(__file__).parents[3] / "docs"
    module, tests = ModuleType("parcel"), ModuleType("test_parcel")
    monkeypatch.setitem(sys.modules, "parcel", module)
    for name, part, found in (("tutorial.md", "@workflow", module), ("workflows.md", "SimulatedWorkflow(", tests)):
        blocks = re.findall(r"^```python\n(.*?)^```$", (docs / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
        (block,) = (each for each in blocks if part in each)
        exec(block, vars(found))
    names = [name for name in vars(tests) if name.startswith("test_")]
    assert len(names) == 2
    for name in names:
        await vars(tests)[name]()
