import os
import random
import time

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.machine import TALLY, Simulation

_LONG_SECONDS = float(os.environ.get("TIMER_TEST_SIMULATION_SECONDS", "180"))
_SEED = int(os.environ.get("TIMER_TEST_SIMULATION_SEED", "0")) or random.randrange(1, 2**32)
_ANY = settings(
    stateful_step_count=50, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)


def test_short() -> None:
    """Whatever befalls the service in some thousand steps, the same ones each time, every promise holds."""
    TALLY.clear()
    run_state_machine_as_test(Simulation, settings=settings(_ANY, max_examples=150, derandomize=True))
    assert min(TALLY[each] for each in ("fired", "updated", "crash", "hold", "outage")) > 0, TALLY


@pytest.mark.full
@pytest.mark.timeout(_LONG_SECONDS + 300)
def test_long() -> None:
    """The same for as long as one likes, other steps each time."""
    TALLY.clear()
    ends_at = time.monotonic() + _LONG_SECONDS
    for turn in range(_SEED, 2**63):
        print(f"TIMER_TEST_SIMULATION_SEED={turn}", end=" ", flush=True)
        run_state_machine_as_test(seed(turn)(_Fresh), settings=settings(_ANY, max_examples=500))
        print(", ".join(f"{count} {what}" for what, count in sorted(TALLY.items())))
        if time.monotonic() > ends_at:
            return


class _Fresh(Simulation):
    """Seeding marks the class."""
