import pytest

from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.workflows import Workflows
from timer_service.core.ports.database import Database


@pytest.fixture
def workflows(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Workflows:
    """Return the workflows slice on each store in turn."""
    return Workflows(store, memory_broker, clock)
