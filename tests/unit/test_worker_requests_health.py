"""The health of the requests of workers: each part that they need can be the cause of a fault."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from tests.harness.builders import command_address
from tests.harness.clock import NOW, ManualClock
from tests.harness.reading import catch_up
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.app import worker_requests as module
from timer_service.app.worker_requests import WorkerRequests
from timer_service.config import Config
from timer_service.core.due.loop import Wakeups
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.transactions import in_transaction
from timer_service.metrics import Metrics

FAULT = Health.down("fault")


def fail_a_request(requests: WorkerRequests) -> None:
    requests._requests._failure.record("fault")


def fail_a_task(requests: WorkerRequests) -> None:
    requests._kept[1]._failure.record("fault")


def lose_the_broker(requests: WorkerRequests) -> None:
    requests._parts.broker.health = FAULT  # type: ignore[misc]


async def wake_nothing() -> None:
    """Wake no loop."""


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


async def test_a_backlog_of_commands(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While commands from before the start wait, no report ends a wait by the time: a command may come before."""
    parts = make_parts(sqlite, memory_broker, ManualClock(), Metrics(CollectorRegistry()))
    memory_broker.send(command_address(), b"{}")
    reader = parts.reader([], wake_nothing)
    found: list[bool] = []

    async def record(*_: object, rng: object, may_time_out: bool, room: int) -> tuple[()]:
        assert (rng, room) == (parts.rng, parts.budget.portion)
        found.append(may_time_out)
        return ()

    monkeypatch.setattr(module, "handle_requests", record)
    requests = WorkerRequests(Config(), parts)
    for _ in range(2):
        handle = await requests._prepare(NOW)
        await in_transaction(sqlite, lambda tx: handle(tx, [], NOW))  # noqa: B023
        await catch_up(reader)
    assert found == [False, True]
