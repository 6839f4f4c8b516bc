"""The timer simulation, and how the simulations work.

A simulation runs the real consumer, handlers and workers of the service in one thread. Only their surroundings are
replaced: the broker is in memory, only the test moves the clock, and the event loop stops when no task can continue
(`stepped_loop`). So a run depends only on its steps, which Hypothesis draws, repeats and shortens. At any await on the
database or the broker, a fault can crash the process, pause a task or make the database unavailable (`faults`).

A model is a short and simple description of the same behaviour (`timer_model`, `signal_model`, `run_model`). After each
commit of the service, the rows and outcomes must agree with the model, and at the end the events too.

The timer simulation in this file draws single steps, and restarts the process on its database files
(`timer_state_machine`, `timer_system`). The history simulation (`test_histories`) draws a history of commands of all
slices, and delivers it in different orders and batches (`scenarios`, `service`, `checker`). A mutant is a deliberate
defect in the service; the tests of mutants assert that a simulation finds it. Set `TIMER_TEST_SIMULATION_SEED` to
repeat a long run.
"""

import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.timer_state_machine import TALLY, TimerStateMachine

_LONG_SECONDS = float(os.environ.get("TIMER_TEST_SIMULATION_SECONDS", "180"))
_SEED = int(os.environ.get("TIMER_TEST_SIMULATION_SEED", "0")) or random.randrange(1, 2**32)
_SHORT_SECONDS = 8.0
_HAPPENS = ("fired", "expired", "cancelled by prefix", "updated", "crash", "pause", "outage")
_ANY = settings(
    max_examples=25,  # with one seed: the time is looked at after each
    stateful_step_count=50,
    deadline=None,
    database=None,
    print_blob=True,
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.timeout(420)  # 10 s, but Hypothesis needs up to 5 minutes to shorten a history that fails
def test_timers_keep_their_guarantees() -> None:
    """Timers keep their guarantees in random steps with faults, for some seconds. The seeds are the same each time."""
    _run(1, _SHORT_SECONDS)


@pytest.mark.full
@pytest.mark.timeout(_LONG_SECONDS + 300)
def test_timers_keep_their_guarantees_in_a_long_run() -> None:
    """Timers keep their guarantees in new random steps, for as long as `TIMER_TEST_SIMULATION_SECONDS`."""
    _run(_SEED, _LONG_SECONDS)


def _run(first_seed: int, seconds: float) -> None:
    """Run the simulation with one seed after the other until the time is up, and everything has happened."""
    TALLY.clear()
    ends_at = time.monotonic() + seconds
    for seed_of_run in range(first_seed, 2**63):
        print(f"TIMER_TEST_SIMULATION_SEED={seed_of_run}", flush=True)
        run_state_machine_as_test(seed(seed_of_run)(_SeededStateMachine), settings=_ANY)
        if time.monotonic() > ends_at and all(TALLY[each] for each in _HAPPENS):
            print(", ".join(f"{count} {what}" for what, count in sorted(TALLY.items())))
            return


class _SeededStateMachine(TimerStateMachine):
    """A subclass, because `seed` modifies the class that it gets."""
