"""Fixtures that run a test on a slice in this process and on the real service, each on every store."""

from collections.abc import AsyncIterator, Iterator
from typing import TypeAlias

import pytest

from tests.harness.clock import ManualClock
from tests.harness.databases import Databases
from tests.harness.live_service import Server, shared_server
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import LiveRuns, RunConversation, Runs
from tests.harness.signals import LiveSignals, SignalConversation, Signals
from tests.harness.stores import STORES

Stage: TypeAlias = Server | str
"""The server of a real service, or the name of the store for a slice in this process."""


@pytest.fixture(scope="session")
def nats_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shared_server(tmp_path_factory.mktemp("service"), "nats") as server:
        yield server


@pytest.fixture(scope="session")
def nats_postgres(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Server]:
    with shared_server(tmp_path_factory.mktemp("service"), "nats", databases) as server:
        yield server


@pytest.fixture(scope="session")
def redis_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shared_server(tmp_path_factory.mktemp("service"), "redis") as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_sqlite(rabbit_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shared_server(tmp_path_factory.mktemp("service"), "rabbitmq") as server:
        yield server


@pytest.fixture(
    params=[
        *(f"memory_{store}" for store in STORES),
        *("nats_sqlite", "nats_postgres", "redis_sqlite"),
        pytest.param("rabbitmq_sqlite", marks=pytest.mark.slow),
    ]
)
def stage(request: pytest.FixtureRequest) -> Stage:
    """Return each stage in turn."""
    broker, _, store = request.param.partition("_")
    if broker == "memory":
        return str(store)
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
async def runs(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[RunConversation]:
    if isinstance(stage, Server):
        async with LiveRuns.connect(stage) as live:
            yield live
    else:
        async with STORES[stage](request) as database:
            yield Runs(database, MemoryBroker(), ManualClock())


@pytest.fixture
async def signals(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[SignalConversation]:
    if isinstance(stage, Server):
        async with LiveSignals.connect(stage) as live:
            yield live
    else:
        async with STORES[stage](request) as database:
            yield Signals(database, MemoryBroker(), ManualClock())
