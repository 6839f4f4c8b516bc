"""Random functions do the same in `SimulatedWorkflow` and in the real slice: effects, numbers, results and instants."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tests.harness.random_workflows import draw_program, run_program
from tests.harness.workflows import Workflows, reports
from timer_service.user_code import UserCode
from timer_service.worker import Context, Retry, RetryAfter, WorkflowFunction
from timer_service.worker.context import current_step, variables_of_step
from timer_service.worker.steps import run_attempt
from timer_service.worker.task import RunningTask
from timer_service.worker.testing import SimulatedWorkflow

SEEDS = 20
_MOST_INSTANTS = 40
_TINY = 1e-6
_RETRY = Retry(max_attempts=2, first=timedelta(0))
Sends = Sequence[tuple[int, str]]
"""Messages: when each is sent, in ms after the start, and its name. Its data is this instant."""


class _Context:
    """A context whose steps end as their keys and the seed say."""

    def __init__(self, ctx: Context, seed: int, calls: Counter[str]) -> None:
        self._ctx, self._seed, self._calls = ctx, seed, calls
        self.sleep, self.wait_for = ctx.sleep, ctx.wait_for

    async def step(self, name: str, *_: Any) -> Any:
        return await self._ctx.step(name, self._work)

    async def _work(self) -> str:
        key = str(current_step())
        self._calls[key] += 1
        random = Random(f"{self._seed} {key} {self._calls[key]}")
        if random.random() < 0.2:
            raise ValueError(key)
        if random.random() < 0.2:
            raise RetryAfter(timedelta(milliseconds=random.choice([0, 300, 1000])), key)
        return f"{key} {self._calls[key]}"


def function_of(seed: int) -> WorkflowFunction[Any, Any]:
    """Return the random function of a seed. Each one counts the calls of its steps by itself."""
    program, calls = draw_program(Random(seed)), Counter[str]()

    async def function(ctx: Context, _: Any) -> Any:
        return await run_program(_Context(ctx, seed, calls), program)

    return WorkflowFunction(f"type-{seed}", function)


def sends_of(seed: int) -> Sends:
    random = Random(seed)
    return sorted((random.randrange(0, 8000, 500), random.choice("ab")) for _ in range(random.randint(0, 6)))


async def simulate(seed: int) -> Any:
    simulated = SimulatedWorkflow(function_of(seed), retry=_RETRY)
    for at, name in sends_of(seed):
        simulated.send(name, at, after=timedelta(milliseconds=at))
    await simulated.run()
    detail = simulated.detail
    effects = {each.key: (each.kind, each.status, each.seq, each.failures, each.result) for each in detail.effects}
    end = detail.failure and (detail.failure.type, detail.failure.message)
    ended_at = None if simulated.detail.workflow.ended_at is None else simulated.elapsed
    return str(simulated.status), detail.result, end, effects, ended_at


class Played:
    """One workflow in the real slice, with the task of a worker."""

    def __init__(self, workflows: Workflows, seed: int) -> None:
        self._workflows, self._function, self._id = workflows, function_of(seed), f"w-{seed}"
        self._sends = list(sends_of(seed))
        self._task: RunningTask | None = None
        self._code = UserCode(1)

    async def play(self) -> Any:
        policy = {**_RETRY.wire}
        assert await self._workflows.start(self._id, type=self._function.type, retry=policy) == "started"
        began = self._workflows.clock.now()
        for _ in range(_MOST_INSTANTS):
            await self._settle(began)
            at = await self._next_at(began)
            if at is None:
                break
            self._workflows.clock.set(at)
        view = await self._workflows.view(self._id)
        keys = ("kind", "status", "seq", "failures", "result")
        effects = {each["key"]: tuple(each.get(key) for key in keys) for each in view["effects"]}
        failure = view.get("failure") and (view["failure"]["type"], view["failure"]["message"])
        elapsed = timedelta(milliseconds=self._workflows.clock.now() - began)
        ended_at = elapsed if "endedAt" in view["workflow"] else None
        return view["workflow"]["status"], view.get("result"), failure, effects, ended_at

    async def _settle(self, began: int) -> None:
        now = self._workflows.clock.now()
        while self._sends and began + self._sends[0][0] <= now:
            at, name = self._sends.pop(0)
            await self._workflows.send_to(self._id, name, data=at)
        await self._renew()
        while await self._advance():
            pass

    async def _renew(self) -> None:
        if self._task is not None:
            held = {"workflowId": self._id, "token": self._task.token}
            reply = await self._workflows.renew(held)
            for each in reply["tasks"]:
                self._task.waits_over(each["over"], self._seconds())

    async def _advance(self) -> bool:
        if self._task is None:
            tasks = await self._workflows.poll(workflow_type=self._function.type)
            if not tasks:
                return False
            self._task = RunningTask(tasks[0], self._function, "acme", lease_until=float("inf"))
            self._task.start(tasks[0]["effects"], self._seconds())
            assert self._task.mismatch is None
        task = self._task
        task.take_steps_to_stop()
        if task.is_over:
            self._task = None
            return True
        begun = task.take_steps_to_start(self._seconds() + _TINY)
        report = task.next_report(self._seconds() + _TINY, is_draining=False)
        if report is not None:
            (reply,) = await self._workflows.ask_all(reports([json.loads(report.text)]))
            task.reported(reply["reports"][0], float("inf"), self._seconds())
        for effect in begun:
            assert effect.call is not None
            variables = variables_of_step(effect.key, effect.call.variables)
            loop = asyncio.get_running_loop()
            attempt = await loop.create_task(run_attempt(effect.call, effect.key, self._code), context=variables)
            task.step_ended(effect.key, attempt, self._seconds())
        return bool(begun) or report is not None

    def _seconds(self) -> float:
        return self._workflows.clock.now() / 1000

    async def _next_at(self, began: int) -> int | None:
        """Return when something happens next."""
        now = self._workflows.clock.now()
        row = await self._workflows.row(self._id)
        if row["ended_at"] is not None:
            return None
        effects = await self._workflows.all_rows("workflow_effects")
        own = [each for each in effects if each["workflow_id"] == self._id and each["status"] == "open"]
        instants = [each["due_at"] for each in own if each["due_at"] is not None and each["due_at"] > now]
        if row["status"] == "waiting":
            instants = [row["available_at"]]
        return min([*instants, *(began + at for at, _ in self._sends)], default=None)


@pytest.mark.slow
async def test_random_functions(workflows: Workflows) -> None:
    """What a test sees in memory is what the service does."""
    for seed in range(SEEDS):
        assert await simulate(seed) == await Played(workflows, seed).play(), seed
