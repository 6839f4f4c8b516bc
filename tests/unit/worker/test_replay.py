"""How a workflow function runs, and how a replay repeats it. No service is needed."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.workflow_play import IDENTITY, Play, failed
from timer_service.worker import Context, Interrupted, NonDeterministicError, NotInWorkflowError, StepFailed
from timer_service.worker.definition import WorkflowFunction
from timer_service.worker.replay import Replay
from timer_service.worker.values import Outcome, StoredEffect

SECOND = timedelta(seconds=1)
Body = Callable[[Context], Awaitable[Any]]


def work(*_: Any) -> Any:
    """A step. A replay never calls it."""


_OPEN: list[Play] = []


def plays(body: Body, stored: list[StoredEffect] | None = None) -> Play:
    async def function(ctx: Context, _: Any) -> Any:
        return await body(ctx)

    _OPEN.append(Play(function, stored=stored or []))
    return _OPEN[-1]


@pytest.fixture(autouse=True)
def _end_of_each_test() -> Iterator[None]:
    """End every function, as a worker does."""
    yield
    while _OPEN:
        _OPEN.pop().replay.close()


def done(key: str, value: Any = None, seq: int | None = None, kind: str = "step") -> StoredEffect:
    return StoredEffect(key, kind, Outcome(value), seq)


def test_gather_begins_all_steps() -> None:
    """Effects that run side by side begin together, and equal names get an index in the order of their begin."""

    async def body(ctx: Context) -> Any:
        return await asyncio.gather(*(ctx.step("a", work, number) for number in range(3)))

    play = plays(body)
    assert list(play.begun) == ["a", "a:1", "a:2"]
    assert play.give("a:2", "z").give("a", "x").give("a:1", "y").result == ["x", "y", "z"]


def test_a_replay_calls_no_step_and_goes_on() -> None:
    """A replay gets the stored results in their order, and begins what has no result."""

    async def body(ctx: Context) -> Any:
        return [await ctx.step("a", work), await ctx.step("a", work), await ctx.step("b", work)]

    play = plays(body, [done("a", 1, 1), done("a:1", 2, 2)])
    assert list(play.begun) == ["b"]
    assert play.give("b", 3).result == [1, 2, 3]


def test_a_failed_step() -> None:
    """A step without attempts left raises StepFailed, with the name of the step and the text of the error."""

    async def body(ctx: Context) -> Any:
        try:
            await ctx.step("pay", work)
        except StepFailed as error:
            return [error.key, error.name, error.type, error.text, str(error)]

    expected = ["pay", "pay", "ValueError", "no card", "the step pay failed: ValueError: no card"]
    play = plays(body).give("pay", failed("no card"))
    assert play.result == expected
    assert plays(body, play.history).result == expected


def test_a_message_of_a_cancelled_wait_is_not_lost() -> None:
    """If the wait that took a message was cancelled, the next wait of this name gets the message."""

    async def body(ctx: Context) -> Any:
        cancelled = asyncio.ensure_future(ctx.wait_for("go"))
        await ctx.step("a", work)
        cancelled.cancel()
        await ctx.step("b", work)
        return [await ctx.wait_for("go"), await ctx.wait_for("go")]

    early = plays(body).give("a").give("go", 1).give("b")
    assert early.waiting() == ["go:1"]
    assert early.give("go:1", 2).result == [1, 2]
    late = plays(body).give("a").give("b").give("go", 1)
    assert late.waiting() == ["go:1", "go:2"]
    assert late.give("go:1", 2).result == [1, 2]


def test_messages_of_cancelled_waits_keep_their_order() -> None:
    """If several waits that took messages were cancelled, the next waits get the messages in their order."""

    async def body(ctx: Context) -> Any:
        cancelled = [asyncio.ensure_future(ctx.wait_for("go")) for _ in range(2)]
        await ctx.step("a", work)
        for each in cancelled:
            each.cancel()
        await ctx.step("b", work)
        return [await ctx.wait_for("go"), await ctx.wait_for("go")]

    assert plays(body).give("a").give("go", 1).give("go:1", 2).give("b").result == [1, 2]


def test_a_cancelled_step_is_dropped() -> None:
    """A worker learns which steps the function no longer waits for. Their results change nothing."""

    async def body(ctx: Context) -> Any:
        task = asyncio.ensure_future(ctx.step("slow", work))
        await ctx.step("fast", work)
        task.cancel()
        return await ctx.step("after", work)

    play = plays(body).give("fast")
    assert (play.dropped, play.waiting()) == (["slow"], ["after"])
    assert play.give("slow", failed("cancelled")).give("after", 1).result == 1
    assert plays(body, play.history).result == 1


async def _sleep(_: Context) -> None:
    await asyncio.sleep(1)


async def _timeout(_: Context) -> None:
    async with asyncio.timeout(1):
        await asyncio.sleep(0)


async def _wait(ctx: Context) -> None:
    await asyncio.wait([asyncio.ensure_future(ctx.sleep(SECOND))], timeout=1)


async def _socket(_: Context) -> None:
    await asyncio.open_connection("localhost", 4222)


@pytest.mark.parametrize("body", [_sleep, _timeout, _wait, _socket])
def test_clocks_and_sockets_are_refused(body: Body) -> None:
    """A call that a replay cannot repeat raises an error that names what to use instead."""
    with pytest.raises(NotInWorkflowError, match=r"ctx\.sleep .* timeout= .* ctx\.step"):
        _ = plays(body).result


def test_as_completed_needs_tasks() -> None:
    """asyncio.as_completed would start coroutines in the order of their addresses; with tasks it can be repeated."""

    async def coroutines(ctx: Context) -> Any:
        for each in asyncio.as_completed([ctx.step("a", work)]):
            await each

    async def tasks(ctx: Context) -> Any:
        started = [asyncio.ensure_future(ctx.step("a", work, number)) for number in range(3)]
        return [await each for each in asyncio.as_completed(started)]

    with pytest.raises(NotInWorkflowError, match="give it tasks"):
        _ = plays(coroutines).result
    assert plays(tasks).give("a:1", 1).give("a:2", 2).give("a", 0).result == [1, 2, 0]


def test_sets_of_tasks_have_the_same_order_in_each_replay() -> None:
    """The order of a set of tasks does not depend on their addresses."""

    async def body(ctx: Context) -> Any:
        tasks = [asyncio.create_task(ctx.step("a", work), name=str(number)) for number in range(20)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return [each.get_name() for each in (*done, *pending)]

    results = [plays(body).give("a:7").result for _ in range(20)]
    assert all(each == results[0] for each in results)


def test_values_are_those_of_the_wire() -> None:
    """Each name of an effect that has a wrong form is refused, and so is a wrong duration."""

    async def colon(ctx: Context) -> None:
        await ctx.step("a:1", work)

    async def negative(ctx: Context) -> None:
        await ctx.sleep(-SECOND)

    for body, text in ((colon, "name must be 1 to 100"), (negative, "duration must lie between")):
        with pytest.raises(ValueError, match=text):
            _ = plays(body).result


def test_random_numbers_are_repeated() -> None:
    """ctx.random gives the same numbers in each replay of a workflow."""

    async def body(ctx: Context) -> Any:
        return [ctx.random.random(), await ctx.step("a", work), ctx.random.random()]

    play = plays(body).give("a")
    assert plays(body, play.history).result == play.result
    assert random.Random(IDENTITY.derive("random")).random() == play.result[0]


def test_a_deadlock_fails() -> None:
    """A function that waits for something that is not an effect, and that no branch can cause, fails."""

    async def body(ctx: Context) -> None:
        await ctx.step("a", work)
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="not an effect"):
        _ = plays(body).give("a").result


def test_too_many_effects() -> None:
    """The function fails at effect 10,001, even if it catches every error."""

    async def body(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step("a", work) for _ in range(10_001)), return_exceptions=True)

    with pytest.raises(RuntimeError, match="at most 10000 effects"):
        _ = plays(body).result


# A function that does not match its stored effects


async def two_steps(ctx: Context) -> None:
    await ctx.step("a", work)
    await ctx.step("b", work)


CASES: dict[str, tuple[list[StoredEffect], str, str]] = {
    "another name": ([done("old", 1, 1)], "the step old", "the step a"),
    "another name later": ([done("a", 1, 1), done("old", 1, 2)], "the step old", "the step b"),
    "another kind": ([done("a", 1, 1, "sleep")], "the sleep a", "the step a"),
    "another kind of an open effect": ([StoredEffect("a", "message")], "the message a", "the step a"),
    "an early end": (
        [done("a", 1, 1), done("b", 1, 2), done("c", 1, 3)],
        "the step c",
        "the end of the function",
    ),
    "an open effect that is gone": ([StoredEffect("old", "step", failures=1)], "the step old", "the step a"),
    "a result without a number that is gone": ([done("old", 1)], "the step old", "the step a"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_changed_function_is_found(case: str) -> None:
    """The error names the stored effect and what the function does instead."""
    stored, expected, found = CASES[case]
    with pytest.raises(NonDeterministicError) as raised:
        plays(two_steps, stored)
    assert (raised.value.expected, raised.value.found) == (expected, found)
    assert str(raised.value).startswith(f"expected {expected}; found {found}. The function has changed")


def test_an_error_of_the_function_does_not_hide_a_mismatch() -> None:
    """A function that catches every error still does not match."""

    async def body(ctx: Context) -> None:
        try:
            await ctx.sleep(SECOND)
        except BaseException:  # noqa: BLE001 - what a careless function does
            return

    with pytest.raises(NonDeterministicError):
        plays(body, [StoredEffect("sleep", "step")])


# Interruptions


def test_an_interruption_runs_finally_blocks() -> None:
    """An interruption goes through every branch as a BaseException, and an effect in `finally` raises it again."""
    seen: list[str] = []

    async def branch(ctx: Context, name: str) -> None:
        try:
            await ctx.step(name, work)
        except Exception:  # noqa: BLE001 - what a function does
            seen.append("caught as an error")
        finally:
            seen.append(f"{name} ends")
            try:
                await ctx.step("again", work)
            except Interrupted:
                seen.append(f"{name} is interrupted again")

    async def body(ctx: Context) -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        try:
            await asyncio.gather(branch(ctx, "a"), branch(ctx, "b"), lock.acquire())
        finally:
            seen.append("end")

    play = plays(body)
    play.replay.close()
    play.replay.close()
    assert sorted(seen) == ["a ends", "a is interrupted again", "b ends", "b is interrupted again", "end"]
    assert play.replay.is_closed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the coroutine ignores its end
def test_a_function_that_was_left_behind_ends_with_its_memory() -> None:
    """The garbage collector raises GeneratorExit in it. A function that catches this, too, does not run on for ever."""
    turns = 0

    async def stubborn(ctx: Context, _: Any) -> None:
        nonlocal turns
        while turns < 10_000:
            with suppress(BaseException):
                await ctx.sleep(SECOND)
            turns += 1

    replay = Replay(WorkflowFunction("stubborn", stubborn), IDENTITY, None)
    replay.advance()
    replay.close()
    assert turns < 2000
    del replay
    gc.collect()
    assert turns < 2000


def test_generators_end_with_the_task() -> None:
    """An asynchronous generator that was left in the middle ends with the task, not when memory is collected."""
    seen: list[str] = []

    async def numbers(ctx: Context) -> Any:
        try:
            while True:
                yield await ctx.step("a", work)
        finally:
            seen.append("closed")

    async def body(ctx: Context) -> None:
        async for _ in numbers(ctx):
            break
        await ctx.step("b", work)

    play = plays(body).give("a")
    assert seen == []
    play.replay.close()
    assert seen == ["closed"]


async def test_a_step_has_no_effects() -> None:
    """An effect inside a step raises an error, because a replay does not run the step again."""
    contexts: list[Context] = []

    async def body(ctx: Context) -> Any:
        contexts.append(ctx)
        await ctx.step("a", work)

    plays(body)
    with pytest.raises(NotInWorkflowError, match="a step has none"):
        await contexts[0].step("b", work)


def test_ctx_key_belongs_to_steps() -> None:
    """The key of a step cannot be read outside a step."""

    async def body(ctx: Context) -> Any:
        return ctx.key

    with pytest.raises(NotInWorkflowError, match=r"ctx\.key"):
        _ = plays(body).result
