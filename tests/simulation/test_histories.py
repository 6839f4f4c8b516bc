"""Random histories of commands, delivered in different orders and batches and with faults, agree with the models."""

import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.simulation.draws import Scenario
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.service import Service, running_service

_LONG_SECONDS = float(os.environ.get("TIMER_TEST_SIMULATION_SECONDS", "180"))
_SEED = int(os.environ.get("TIMER_TEST_SIMULATION_SEED", "0")) or random.randrange(1, 2**32)
_ANY = settings(
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
_SHORT, _LONG = 40, 25
_WITH_WORKERS = 28
"""How many short histories have workers. Each takes about 40 ms."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as started:
        yield started


def _play(service: Service, scenario: Scenario, how: settings, seed_of_run: int | None = None) -> None:
    @given(st.data())
    def play(data: st.DataObject) -> None:
        scenario(service, data.draw)

    how(play if seed_of_run is None else seed(seed_of_run)(play))()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_histories_agree_with_the_models(service: Service, scenario: str) -> None:
    """The service agrees with the models in some random histories. The histories are the same in each run."""
    count = _WITH_WORKERS if scenario.startswith("workflows") else _SHORT
    _play(service, SCENARIOS[scenario], settings(_ANY, max_examples=count, derandomize=True))


@pytest.mark.full
@pytest.mark.timeout(_LONG_SECONDS + 300)
@pytest.mark.parametrize("with_workers", [False, True], ids=["commands", "workflows"])
def test_histories_agree_with_the_models_in_a_long_run(service: Service, *, with_workers: bool) -> None:
    """The service agrees with the models in new random histories, for `TIMER_TEST_SIMULATION_SECONDS`."""
    ends_at = time.monotonic() + _LONG_SECONDS
    names = [name for name in SCENARIOS if name.startswith("workflows") == with_workers]
    for seed_of_run in range(_SEED, 2**63):
        for name in names:
            print(f"TIMER_TEST_SIMULATION_SEED={seed_of_run} {name}", flush=True)
            _play(service, SCENARIOS[name], settings(_ANY, max_examples=_LONG), seed_of_run)
            if time.monotonic() > ends_at:
                return
