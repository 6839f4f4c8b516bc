"""What every scenario is played through: the slice driven by hand and the real service, each on every store."""

from collections.abc import AsyncIterator
from typing import TypeAlias

import pytest

from tests.support.clock import ManualClock
from tests.support.live import Place, Places
from tests.support.runs import LiveRuns, RunConversation, Runs
from tests.support.signals import LiveSignals, SignalConversation, Signals
from tests.support.stores import STORES
from timer_service.adapters.memory import MemoryBroker

Stage: TypeAlias = Place | str
"""Where the service runs, or on which store it is driven by hand."""


@pytest.fixture(params=[f"{broker}-{store}" for broker in ("memory", "nats") for store in STORES])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Every way in turn."""
    broker, _, store = request.param.partition("-")
    places: Places = request.getfixturevalue("places")
    return places.on(store) if broker == "nats" else store


@pytest.fixture
async def runs(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[RunConversation]:
    if isinstance(stage, Place):
        async with LiveRuns.at(stage) as live:
            yield live
    else:
        async with STORES[stage](request) as database:
            yield Runs(database, MemoryBroker(), ManualClock())


@pytest.fixture
async def signals(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[SignalConversation]:
    if isinstance(stage, Place):
        async with LiveSignals.at(stage) as live:
            yield live
    else:
        async with STORES[stage](request) as database:
            yield Signals(database, MemoryBroker(), ManualClock())
