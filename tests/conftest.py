"""Fixtures of every layer. Backends come from the tables in `tests.harness`, so that a new one is one entry there."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.harness.brokers import HARNESSES, BrokerHarness
from tests.harness.clock import ManualClock
from tests.harness.databases import Databases
from tests.harness.metrics import RecordingMetrics
from tests.harness.provision import (
    PROVISION_HELP,
    Provision,
    RestartablePostgres,
    restartable_postgres,
    shared_postgres,
)
from tests.harness.stores import STORES, open_postgres, open_sqlite
from tests.harness.timeouts import Timeouts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.database import Database


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--provision", choices=[*map(str, Provision)], default="auto", help=PROVISION_HELP)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Timeouts())


@pytest.fixture(scope="session")
def provision(pytestconfig: pytest.Config) -> Provision:
    return Provision(pytestconfig.getoption("provision"))


@pytest.fixture(scope="session")
def databases(provision: Provision) -> Iterator[Databases]:
    """Databases of one Postgres server for all tests of this process."""
    with shared_postgres(provision) as url, Databases(url) as started:
        yield started


@pytest.fixture
def postgres_server(provision: Provision) -> Iterator[RestartablePostgres]:
    """A Postgres server of the test's own, to be stopped and killed."""
    with restartable_postgres(provision) as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics() -> RecordingMetrics:
    return RecordingMetrics()


@pytest.fixture
def memory_broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """Every store in turn, empty and with the whole schema."""
    async with STORES[request.param](request) as database:
        yield database


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """For what only SQLite does."""
    async with open_sqlite(tmp_path / "timers.db") as database:
        yield database


@pytest.fixture
async def postgres(databases: Databases) -> AsyncIterator[PostgresDatabase]:
    """For what only PostgreSQL does."""
    async with open_postgres(databases) as database:
        yield database


@pytest.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[BrokerHarness]:
    """Every broker in turn, empty."""
    async with HARNESSES[request.param](request) as started:
        yield started
