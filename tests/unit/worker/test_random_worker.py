"""Random workflow functions with real workers, a service in memory and faults, in virtual time.

Requests and replies are lost, workers are killed at any instant, leases run out, messages come at any time. Every
workflow ends, each stored result is kept (the service in memory asserts it), and a replay of all stored results ends
with the stored result.
"""

import asyncio
import os
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.harness.clock import in_virtual_time
from tests.harness.random_workflows import Program, draw_program, run_program
from tests.harness.workflow_service import MemoryService, Row
from timer_service.worker import Context, WorkflowFunction
from timer_service.worker.names import Identity
from timer_service.worker.process import run_worker
from timer_service.worker.replay import Replay
from timer_service.worker.settings import Settings
from timer_service.worker.values import StoredEffect

SEEDS = int(os.environ.get("TIMER_TEST_WORKFLOW_SEEDS", "60"))
_WORKFLOWS = 4
_FAULT_SECONDS = 100


class _Context:
    """A context whose steps take a random time and sometimes fail."""

    def __init__(self, ctx: Context, random: Random, calls: Counter[tuple[str, str]]) -> None:
        self._ctx = ctx
        self._calls = calls
        self._random = random
        self.sleep = ctx.sleep
        self.wait_for = ctx.wait_for

    async def step(self, name: str, *_: Any) -> Any:
        return await self._ctx.step(name, self._work, name)

    async def _work(self, name: str) -> str:
        self._calls[self._ctx.workflow_id, self._ctx.key] += 1
        await asyncio.sleep(self._random.choice([0, 0, 0.01, 1, 15]))
        if self._random.random() < 0.3:
            raise ValueError(name)
        return f"{name}-{self._random.randint(0, 9)}"


def function_of(program: Program, random: Random, name: str, calls: Counter[tuple[str, str]]) -> WorkflowFunction:
    async def function(ctx: Context, _: Any) -> Any:
        return await run_program(_Context(ctx, random, calls), program)

    return WorkflowFunction(name, function)


async def send_messages(service: MemoryService, random: Random) -> None:
    while True:
        await asyncio.sleep(random.choice([0.1, 1, 5]))
        service.send(random.choice(list(service.rows)), random.choice("ab"), random.randint(0, 99))


async def run_and_kill(service: MemoryService, random: Random, functions: dict[str, WorkflowFunction]) -> None:
    """Run workers one after another, and kill each or stop it at a random instant."""
    while True:
        stop = asyncio.Event()
        settings = Settings("acme", functions, slots=random.randint(1, 4), lease_seconds=10, shutdown_seconds=5)
        worker = asyncio.create_task(run_worker(service, settings, stop))
        try:
            await asyncio.sleep(random.uniform(0, 40))
            if random.random() < 0.5:
                stop.set()
                await worker
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker


def check_replay(row: Row, function: WorkflowFunction) -> None:
    """Replay all results of a workflow, and compare its end."""
    replay = Replay(function, Identity("acme", row.id, "2026-11-21T09:00:00.000Z"), row.input, stored_of(row))
    decision = replay.advance()
    replay.close()
    assert decision.finished is not None
    assert (decision.finished.error is None) == (row.status == "completed")
    if row.status == "completed":
        assert decision.finished.result == row.end.get("result")


def stored_of(row: Row) -> list[StoredEffect]:
    # A step that had ended when the function ended may be stored although the function did not get its result.
    return [StoredEffect.read(each) for each in row.effects.values()]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_random_workers(block: int) -> None:
    """Whatever is lost or killed, every workflow ends as its stored results say."""
    for seed in range(block, SEEDS, 6):
        in_virtual_time(lambda seed=seed: play(seed))  # type: ignore[misc]


@pytest.mark.parametrize("block", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 6))])
def test_random_workers_without_kills(block: int) -> None:
    """If no worker dies, no call is repeated that had an end: lost requests and replies are no reason."""
    for seed in range(block, SEEDS, 6):
        in_virtual_time(lambda seed=seed: play_without_kills(seed))  # type: ignore[misc]


async def play_without_kills(seed: int) -> None:
    random = Random(seed)
    calls: Counter[tuple[str, str]] = Counter()
    service, functions = start_workflows(random, calls)
    service.fault = lambda _: random.random() < 0.05
    stop = asyncio.Event()
    settings = [Settings("acme", functions, slots=random.randint(1, 4)) for _ in range(2)]
    workers = [asyncio.create_task(run_worker(service, each, stop)) for each in settings]
    sender = asyncio.create_task(send_messages(service, random))
    try:
        async with asyncio.timeout(20_000):
            await service.until_ended()
    finally:
        sender.cancel()
        stop.set()
        await asyncio.wait([sender, *workers])
    for row in service.rows.values():
        identity = Identity("acme", row.id, "2026-11-21T09:00:00.000Z")
        for step in row.effects.values():
            called = calls[row.id, identity.derive(f"step {step['key']}")]
            if step["kind"] == "step" and step["status"] == "done":
                assert called == step.get("failures", 0) + 1, (seed, row.id, step)


def start_workflows(
    random: Random, calls: Counter[tuple[str, str]]
) -> tuple[MemoryService, dict[str, WorkflowFunction]]:
    """Start workflows of random functions, and return the service and the functions."""
    service = MemoryService(retry_seconds=random.choice([0, 0.1, 3, 30]))
    functions = {}
    for number in range(_WORKFLOWS):
        functions[f"t{number}"] = function_of(draw_program(random), random, f"t{number}", calls)
        service.start(f"w{number}", f"t{number}", max_attempts=random.randint(1, 3))
    return service, functions


async def play(seed: int) -> None:
    random = Random(seed)
    service, functions = start_workflows(random, Counter())
    loop = asyncio.get_running_loop()
    service.fault = lambda _: loop.time() < _FAULT_SECONDS and random.random() < 0.05
    others = [asyncio.create_task(run_and_kill(service, random, functions)) for _ in range(2)]
    others.append(asyncio.create_task(send_messages(service, random)))
    try:
        async with asyncio.timeout(20_000):
            ended = asyncio.create_task(service.until_ended())
            await asyncio.wait([ended, *others], return_when=asyncio.FIRST_COMPLETED)
            assert ended.done(), [each for each in others if each.done()]
    finally:
        for each in others:
            each.cancel()
        await asyncio.wait(others)
        for each in others:
            if not each.cancelled():
                each.result()
    for row in service.rows.values():
        check_replay(row, functions[row.type])
