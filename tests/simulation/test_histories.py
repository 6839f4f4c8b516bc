"""Generated histories: whatever is sent, and however it is delivered, split and interrupted, the models hold."""

import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.simulation.service import Service, running_service
from tests.simulation.ways import WAYS, Way

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
_SHORT, _LONG = 40, 200


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as started:
        yield started


def _play(service: Service, way: Way, how: settings, turn: int | None = None) -> None:
    @given(st.data())
    def play(data: st.DataObject) -> None:
        way(service, data.draw)

    how(play if turn is None else seed(turn)(play))()


@pytest.mark.parametrize("way", WAYS)
def test_short(service: Service, way: str) -> None:
    """Some histories, the same ones each time."""
    _play(service, WAYS[way], settings(_ANY, max_examples=_SHORT, derandomize=True))


@pytest.mark.full
def test_long(service: Service) -> None:
    """Others each time, for as long as one likes."""
    ends_at = time.monotonic() + _LONG_SECONDS
    for turn in range(_SEED, 2**63):
        for name, way in WAYS.items():
            print(f"TIMER_TEST_SIMULATION_SEED={turn} {name}", flush=True)
            _play(service, way, settings(_ANY, max_examples=_LONG), turn)
            if time.monotonic() > ends_at:
                return
