import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import Schedules, StartingSchedules
from timer_service.core.ports.database import Database


@pytest.fixture
def schedules(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Schedules:
    """Return the schedules slice on each store in turn."""
    return Schedules(store, memory_broker, clock)


@pytest.fixture
def starting(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> StartingSchedules:
    """Return the slices of schedules and workflows on each store in turn."""
    return StartingSchedules(store, memory_broker, clock)
