import logging
import os
import random
import time
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.machine import TALLY, Simulation

SHORT = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def test_short() -> None:
    """Whatever befalls the service within some thousand steps, always the same ones, every promise holds."""
    TALLY.clear()
    started = time.perf_counter()
    run_state_machine_as_test(Simulation, settings=SHORT)
    print(dict(TALLY), time.perf_counter() - started)
