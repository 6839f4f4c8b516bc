"""Random workflow functions do what plain asyncio does, and every replay of them repeats it."""

import os
from random import Random
from typing import Any

import pytest

from tests.harness.random_workflows import PlainContext, Program, draw_program, run_program
from tests.harness.workflow_play import Play, failed
from tests.simulation.stepped_loop import SteppedLoop
from timer_service.worker import Context
from timer_service.worker.values import Kind, Outcome

SEEDS = int(os.environ.get("TIMER_TEST_WORKFLOW_SEEDS", "300"))
_MOST_RESULTS = 60


def play_of(program: Program, stored: Any = ()) -> Play:
    async def function(ctx: Context, _: Any) -> Any:
        return await run_program(ctx, program)

    return Play(function, stored=stored)


def end_of(play: Play) -> Any:
    """Return how the function ended, in a form that can be compared."""
    if play.finished is None:
        return "not ended"
    error = play.finished.error
    return play.finished.result if error is None else f"{type(error).__name__}: {error}"


class Model:
    """The function on plain asyncio."""

    def __init__(self, program: Program) -> None:
        self.loop = SteppedLoop()
        self.context = PlainContext()
        self.main = self.loop.create_task(run_program(self.context, program))
        self.loop.settle()

    def give(self, key: str, outcome: Outcome) -> None:
        self.context.give(key, outcome)
        self.loop.settle()

    def end(self) -> Any:
        if not self.main.done():
            return "not ended"
        error = self.main.exception()
        return self.main.result() if error is None else f"{type(error).__name__}: {error}"

    def close(self) -> None:
        for _ in range(3):
            for task in self.tasks():
                task.cancel()
            self.loop.settle()
        self.loop.close()

    def tasks(self) -> Any:
        import asyncio  # noqa: PLC0415

        return asyncio.all_tasks(self.loop)


def draw_outcome(random: Random, play: Play, key: str) -> Outcome:
    effect = play.begun[key]
    if key in play.dropped:
        return failed("cancelled")
    if effect.kind is Kind.STEP and random.random() < 0.25:
        return failed(f"error of {key}")
    if effect.kind is Kind.MESSAGE and effect.ms is not None and random.random() < 0.4:
        return Outcome(failed=True)
    return Outcome(None if effect.kind is Kind.SLEEP else f"{key}={random.randint(0, 99)}")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_random_functions(block: int) -> None:
    """Each function has the results of plain asyncio, and each prefix of its results leads to the same effects."""
    for seed in range(block, SEEDS, 10):
        random = Random(seed)
        program = draw_program(random)
        play, model = play_of(program), Model(program)
        asked = [live(play)]
        while play.finished is None and len(play.history) < _MOST_RESULTS:
            assert live(play) == model.context.waiting(), seed
            key = random.choice([key for key in play.begun if not play.replay.has_got(key)])
            outcome = draw_outcome(random, play, key)
            play.give(key, outcome)
            model.give(key, outcome)
            asked.append(live(play))
        assert end_of(play) == model.end(), seed
        model.close()
        for results in range(len(play.history) + (play.finished is None)):
            again = play_of(program, play.stored(results))
            assert live(again) == asked[results], (seed, results)
            for effect in play.history[results:]:
                assert effect.outcome is not None
                again.begun.setdefault(effect.key, play.begun[effect.key])
                again.give(effect.key, effect.outcome)
            assert end_of(again) == end_of(play), (seed, results)
            again.replay.close()
        play.replay.close()


def live(play: Play) -> set[str]:
    """Return the keys of the effects that the function waits for."""
    return set(play.replay.waiting)
