"""Fixtures of every layer. Backends come from the tables in `tests.support`, so that a new one is one entry there."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.brokers import HARNESSES, BrokerHarness
from tests.support.clock import ManualClock
from tests.support.instruments import RecordingInstruments
from tests.support.stores import STORES, open_sqlite
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.database import Database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def instruments() -> RecordingInstruments:
    return RecordingInstruments()


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


@pytest.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[BrokerHarness]:
    """Every broker in turn, empty."""
    async with HARNESSES[request.param](request) as started:
        yield started
