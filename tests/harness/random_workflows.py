"""Random workflow functions, and plain asyncio as the model of what they do."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from timer_service.worker import StepFailed
from timer_service.worker.names import effect_key
from timer_service.worker.values import Outcome

Statement = tuple[Any, ...]
Program = Sequence[Statement]

_NAMES = ("a", "a", "b")


def draw_program(random: Random, depth: int = 3) -> Program:
    """Return a program of one to three statements."""
    return [_draw(random, depth) for _ in range(random.randint(1, 3))]


def _draw(random: Random, depth: int) -> Statement:
    simple = ["step", "step", "sleep", "message", "message"]
    nested = ["gather", "group", "race", "locked", "loop", "catch"] if depth else []
    match random.choice(simple + nested):
        case "step":
            return "step", random.choice(_NAMES)
        case "message":
            return "message", random.choice(_NAMES), random.choice([None, timedelta(seconds=1)])
        case "gather" | "group" | "race" as how:
            return how, [draw_program(random, depth - 1) for _ in range(random.randint(2, 3))]
        case "loop":
            return "loop", random.randint(1, 3), draw_program(random, depth - 1)
        case "locked" | "catch" as how:
            return how, draw_program(random, depth - 1)
        case _:
            return ("sleep",)


async def run_program(ctx: Any, program: Program) -> Any:
    """Run a program and return the results of its statements."""
    return await _run_all(ctx, program, asyncio.Lock())


async def _run_all(ctx: Any, program: Program, lock: asyncio.Lock) -> list[Any]:
    return [await _run(ctx, statement, lock) for statement in program]


async def _run(ctx: Any, statement: Statement, lock: asyncio.Lock) -> Any:  # noqa: C901 - one case for each statement
    match statement:
        case ("step", name):
            return await ctx.step(name, print)
        case ("sleep",):
            return await ctx.sleep(timedelta(seconds=1))
        case ("message", name, timeout):
            return await ctx.wait_for(name, timeout=timeout)
        case ("gather", branches):
            return await asyncio.gather(*(_run_all(ctx, each, lock) for each in branches))
        case ("group", branches):
            return await _run_group(ctx, branches, lock)
        case ("race", branches):
            return await _run_race(ctx, branches, lock)
        case ("loop", times, body):
            return [await _run_all(ctx, body, lock) for _ in range(times)]
        case ("locked", body):
            if lock.locked():  # a lock inside a lock would wait for itself
                return await _run_all(ctx, body, asyncio.Lock())
            async with lock:
                return await _run_all(ctx, body, lock)
        case ("catch", body):
            try:
                return await _run_all(ctx, body, lock)
            except (StepFailed, TimeoutError) as error:
                return ["caught", str(error), await ctx.step("undo", print)]
    raise AssertionError(statement)


async def _run_group(ctx: Any, branches: Sequence[Program], lock: asyncio.Lock) -> Any:
    tasks = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(_run_all(ctx, each, lock)) for each in branches]
    except* (StepFailed, TimeoutError):
        pass
    return [None if task.cancelled() or task.exception() else task.result() for task in tasks]


async def _run_race(ctx: Any, branches: Sequence[Program], lock: asyncio.Lock) -> Any:
    tasks = [asyncio.ensure_future(_run_all(ctx, each, lock)) for each in branches]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    return [str(end) if isinstance(end, BaseException) else end for end in ends]


class PlainContext:
    """A context on plain asyncio: every effect is a future, and a test gives it its result."""

    def __init__(self) -> None:
        self.effects: dict[str, asyncio.Future[Any]] = {}
        self._messages: list[str] = []
        self._names: Counter[str] = Counter()
        self._unread: dict[str, deque[Any]] = {}

    async def step(self, name: str, *_: Any) -> Any:
        return await self._begin(name)

    async def sleep(self, _: timedelta) -> None:
        await self._begin("sleep")

    async def wait_for(self, name: str, *, timeout: timedelta | None) -> Any:  # noqa: ASYNC109, ARG002
        if unread := self._unread.get(name):
            return unread.popleft()
        return await self._begin(name, self._messages)

    def give(self, key: str, outcome: Outcome) -> None:
        """Give a result to an effect. A message goes to another wait if its own wait was cancelled."""
        future, name = self.effects[key], key.partition(":")[0]
        if key not in self._messages:
            error: Exception = StepFailed(key, outcome.error)
        else:
            error = TimeoutError(f"no message {name} came in time")
            if future.done() and not outcome.failed:
                same = [self.effects[each] for each in self._messages if each.partition(":")[0] == name]
                future = next((each for each in same if not each.done()), future)
                if future.done():
                    self._unread.setdefault(name, deque()).append(outcome.value)
        if not future.done() and outcome.failed:
            future.set_exception(error)
        elif not future.done():
            future.set_result(outcome.value)

    def waiting(self) -> set[str]:
        """Return the keys of the effects that the function waits for."""
        return {key for key, future in self.effects.items() if not future.done()}

    def _begin(self, name: str, keys: list[str] | None = None) -> asyncio.Future[Any]:
        key = effect_key(name, self._names[name])
        self._names[name] += 1
        self.effects[key] = asyncio.get_running_loop().create_future()
        if keys is not None:
            keys.append(key)
        return self.effects[key]
