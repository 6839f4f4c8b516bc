"""The health of the requests of workers: each part that they need can be the cause of a fault."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.clock import ManualClock
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app.worker_requests import WorkerRequests
from timer_service.config import Config
from timer_service.core.health import HEALTHY, Health
from timer_service.core.wakeups import Wakeups
from timer_service.metrics import Metrics

FAULT = Health.down("fault")


def fail_a_request(requests: WorkerRequests) -> None:
    requests._requests._failure.record("fault")


def fail_a_task(requests: WorkerRequests) -> None:
    requests._kept[1]._failure.record("fault")


def lose_the_broker(requests: WorkerRequests) -> None:
    requests._parts.broker.health = FAULT  # type: ignore[misc]


@pytest.mark.parametrize("fail", [fail_a_request, fail_a_task, lose_the_broker])
async def test_each_part(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, fail: Callable[[WorkerRequests], None]
) -> None:
    """Requests are down while the broker is away, and after a request or the task that holds polls has failed."""
    clock = ManualClock()
    requests = WorkerRequests(Config(), make_parts(sqlite, memory_broker, clock, Metrics(CollectorRegistry())))
    await requests.open(memory_broker, Wakeups(memory_broker, clock, timedelta(seconds=5), [], alone=True))
    before = requests.health
    fail(requests)
    assert (before, requests.health) == (HEALTHY, FAULT)
