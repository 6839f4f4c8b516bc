import pytest

from tests.harness.clock import ManualClock
from tests.harness.timers import Timers
from timer_service.adapters.memory import MemoryBroker
from timer_service.core.ports.database import Database


@pytest.fixture
def timers(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Timers:
    """Return the timers slice over every store in turn."""
    return Timers(store, memory_broker, clock)
