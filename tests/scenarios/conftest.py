"""What every scenario is played through: the slice driven by hand and the real service, each on every store."""

from collections.abc import AsyncIterator, Iterator
from typing import TypeAlias

import pytest

from tests.support.clock import ManualClock
from tests.support.databases import Databases
from tests.support.live import Server, shared_place
from tests.support.runs import LiveRuns, RunConversation, Runs
from tests.support.signals import LiveSignals, SignalConversation, Signals
from tests.support.stores import STORES
from timer_service.adapters.memory import MemoryBroker

Stage: TypeAlias = Server | str
"""Where the service runs, or on which store it is driven by hand."""


@pytest.fixture(scope="session")
def sqlite_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shared_place(tmp_path_factory.mktemp("place")) as place:
        yield place


@pytest.fixture(scope="session")
def postgres_place(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Server]:
    with shared_place(tmp_path_factory.mktemp("place"), databases) as place:
        yield place


@pytest.fixture(params=[f"{broker}-{store}" for broker in ("memory", "nats") for store in STORES])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Every way in turn."""
    broker, _, store = request.param.partition("-")
    if broker == "memory":
        return str(store)
    place: Server = request.getfixturevalue(f"{store}_place")
    return place


@pytest.fixture
async def runs(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[RunConversation]:
    if isinstance(stage, Server):
        async with LiveRuns.at(stage) as live:
            yield live
    else:
        async with STORES[stage](request) as database:
            yield Runs(database, MemoryBroker(), ManualClock())


@pytest.fixture
async def signals(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[SignalConversation]:
    if isinstance(stage, Server):
        async with LiveSignals.at(stage) as live:
            yield live
    else:
        async with STORES[stage](request) as database:
            yield Signals(database, MemoryBroker(), ManualClock())
