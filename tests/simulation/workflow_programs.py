"""The workflow functions of the simulation, and the outside world that their steps call."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from tests.harness.random_workflows import PlainContext, Program, run_program
from timer_service.worker import StepFailed, workflow
from timer_service.worker.definition import WorkflowFunction
from timer_service.worker.errors import describe_error
from timer_service.worker.names import effect_key
from timer_service.worker.values import StoredEffect

_SHORT, _LONG = timedelta(seconds=3), timedelta(seconds=30)

PROGRAMS: Mapping[str, Program] = {
    "line": [("step", "a"), ("sleep",), ("step", "a"), ("step", "b")],
    "mail": [("message", "x", _LONG), ("step", "a"), ("message", "x", None)],
    "late": [("step", "a"), ("catch", [("message", "x", _LONG)]), ("step", "a")],
    "gather": [("gather", [[("step", "a"), ("message", "x", None)], [("sleep",), ("step", "a")], [("step", "b")]])],
    "race": [("race", [[("message", "x", None)], [("sleep",)]]), ("step", "a"), ("message", "x", _SHORT)],
    "loop": [("loop", 2, [("message", "x", None), ("step", "a")])],
    "caught": [("catch", [("step", "b")]), ("step", "a")],
    "beside": [("gather", [[("step", "b")], [("step", "a"), ("sleep",), ("message", "x", _LONG)]])],
}
"""What functions do. The input of a workflow names its program."""
BRANCHING = {"gather", "race", "beside"}
TYPES = ("order", "invoice")
TOO_LATE = "a result after the end of the attempt"


class Call(NamedTuple):
    """A call of a step, and what was stored of its workflow at that time."""

    workflow: str
    key: str
    stored: Sequence[Mapping[str, Any]]
    may_have_ended: bool
    """Whether its worker knew that its task has ended, or that a report under way may end it."""


class World:
    """What the steps of all workers call. Each call has another result. The first calls of some steps fail or last."""

    def __init__(
        self, read: Callable[[str], Sequence[Mapping[str, Any]]], may_have_ended: Callable[[str, str], bool]
    ) -> None:
        """`read` returns the results that the function of a workflow has got, in their order.

        `may_have_ended` returns whether a worker knows that it must start no step of a workflow.
        """
        self._read = read
        self._may_have_ended = may_have_ended
        self.calls: Counter[tuple[str, str]] = Counter()
        self.new: list[Call] = []
        self.lines: Counter[tuple[str, str]] = Counter()
        """How often functions would log that they ask for a step."""

    async def call(self, worker: str, workflow_id: str, key: str, plan: Mapping[str, Any]) -> str:
        self.calls[workflow_id, key] += 1
        number, name = self.calls[workflow_id, key], key.partition(":")[0]
        ended = self._may_have_ended(worker, workflow_id)
        self.new.append(Call(workflow_id, key, self._read(workflow_id), ended))
        if number <= plan.get("slowCalls", 1) and (seconds := plan["slow"].get(name)):
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if not plan["stubborn"]:
                    raise
                await asyncio.sleep(seconds)
                return TOO_LATE
        if number <= plan["fails"].get(name, 0):
            raise OSError(f"call {number} of {key}")
        return f"result {number} of {key}"

    def functions(self, worker: str) -> list[WorkflowFunction[Any, Any]]:
        """Return the functions of all types, for a worker."""

        async def run(ctx: Any, plan: Any) -> Any:
            return await run_program(_Context(ctx, self, worker, plan), PROGRAMS[plan["program"]])

        return [workflow(each)(run) for each in TYPES]


class _Context:
    """Lets the steps of a program call the world, and the sleeps last as long as the plan says."""

    def __init__(self, ctx: Any, world: World, worker: str, plan: Mapping[str, Any]) -> None:
        self._ctx, self._world, self._worker, self._plan = ctx, world, worker, plan
        self._steps: Counter[str] = Counter()

    async def step(self, name: str, *_: Any) -> Any:
        key = effect_key(name, self._steps[name])
        self._steps[name] += 1
        if not self._ctx.is_replaying:  # as the logger: the simulation switches the logs off
            self._world.lines[self._ctx.workflow_id, key] += 1
        limit = timedelta(seconds=self._plan["limit"])
        about = self._worker, self._ctx.workflow_id, key, self._plan
        return await self._ctx.step(name, self._world.call, *about, timeout=limit)

    async def sleep(self, _: timedelta) -> None:
        await self._ctx.sleep(timedelta(milliseconds=self._plan["sleepMs"]))

    async def wait_for(self, name: str, *, timeout: timedelta | None) -> Any:  # noqa: ASYNC109 - of the program
        return await self._ctx.wait_for(name, timeout=timeout)


async def changed_function(ctx: Any, _: Any) -> Any:
    """A function that matches no stored effect of a program, and stores none."""
    await ctx.step("changed", asyncio.Event().wait)


class Expected(NamedTuple):
    """What a function does after it got some results: the effects that it asked for, and its end."""

    asked: frozenset[str]
    result: Any = None
    error: str | None = None
    step: str | None = None
    is_over: bool = False


def expect(loop: Any, program: str, stored: Sequence[Mapping[str, Any]]) -> Expected:
    """Run a program on plain asyncio, and give it stored results in their order."""
    context = PlainContext()
    task = loop.create_task(run_program(context, PROGRAMS[program]))
    loop.settle()
    for each in stored:
        effect = StoredEffect.read(each)
        assert effect.key in context.effects, f"{program} got a result of {effect.key}, for which it had not asked"
        assert effect.outcome is not None
        context.give(effect.key, effect.outcome)
        loop.settle()
    asked = frozenset(context.effects)
    if not task.done():
        task.cancel()
        loop.settle()
        return Expected(asked)
    error = task.exception()
    if error is None:
        return Expected(asked, result=task.result(), is_over=True)
    step = error.key if isinstance(error, StepFailed) else None
    return Expected(asked, error=describe_error(error).message, step=step, is_over=True)
