"""The timer simulation, and how the whole simulation works.

A simulation runs the real service in one thread. Only its edges are replaced: the broker is in memory, the clock moves
only when a test moves it, and the event loop stops when no task can continue (`stepped_loop`). So a run depends only on
its steps, and Hypothesis can draw the steps, repeat them and shorten them. `faults` wraps database and broker: at any
await, it can crash the process, pause it or make the database unavailable.

A model is a short, simple description of the same behaviour (`timer_model`, `signal_model`, `run_model`). After each
commit of the service, the rows and outcomes are compared with the model, and at the end the events too.

There are two simulations. This one draws single steps on timers and restarts the process on its files
(`timer_state_machine`, `timer_system`). `test_histories` draws a history of commands of all slices and delivers it in
different orders and batches (`scenarios`, `service`, `checker`). The tests of mutants break the service on purpose and
assert that a simulation finds the defect. Set `TIMER_TEST_SIMULATION_SEED` to repeat a long run.
"""

import os
import random
import time

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.timer_state_machine import TALLY, TimerStateMachine

_LONG_SECONDS = float(os.environ.get("TIMER_TEST_SIMULATION_SECONDS", "180"))
_SEED = int(os.environ.get("TIMER_TEST_SIMULATION_SEED", "0")) or random.randrange(1, 2**32)
_ANY = settings(
    stateful_step_count=50, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)


def test_timers_keep_their_guarantees() -> None:
    """Timers keep their guarantees in some thousand random steps with faults. The steps are the same in each run."""
    TALLY.clear()
    run_state_machine_as_test(TimerStateMachine, settings=settings(_ANY, max_examples=150, derandomize=True))
    assert min(TALLY[each] for each in ("fired", "updated", "crash", "pause", "outage")) > 0, TALLY


@pytest.mark.full
@pytest.mark.timeout(_LONG_SECONDS + 300)
def test_timers_keep_their_guarantees_in_a_long_run() -> None:
    """Timers keep their guarantees in new random steps, for as long as `TIMER_TEST_SIMULATION_SECONDS`."""
    TALLY.clear()
    ends_at = time.monotonic() + _LONG_SECONDS
    for seed_of_run in range(_SEED, 2**63):
        print(f"TIMER_TEST_SIMULATION_SEED={seed_of_run}", end=" ", flush=True)
        run_state_machine_as_test(seed(seed_of_run)(_SeededStateMachine), settings=settings(_ANY, max_examples=500))
        print(", ".join(f"{count} {what}" for what, count in sorted(TALLY.items())))
        if time.monotonic() > ends_at:
            return


class _SeededStateMachine(TimerStateMachine):
    """A subclass, because `seed` modifies the class that it gets."""
