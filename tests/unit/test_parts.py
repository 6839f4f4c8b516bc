"""What the parts of an instance get from its settings."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import pytest

from tests.harness.builders import command_address, schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.wiring import BATCH, make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import Route
from timer_service.core.limits.audit import AuditLog
from timer_service.core.ports.database import Transaction
from timer_service.core.requests.query_queue import QueryLimits
from timer_service.core.service.retention import Retention
from timer_service.core.values.budget import LEAST_MEMORY_BYTES, Budget
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Command
from timer_service.timers import SLICE

RETENTION = timedelta(days=1)
BUDGET = Budget.of(LEAST_MEMORY_BYTES)


async def test_parts_share_the_budget(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> None:
    """The consumer, the queries and the relays get their shares of the memory budget of the instance."""
    parts = replace(make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics()), budget=BUDGET)
    assert parts.queries([])._turns._queue._limits == QueryLimits.of(BUDGET.queries)
    assert parts.consumer([])._part_bytes == BUDGET.part


async def test_consumer_has_the_audit_log_of_the_instance(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop of the audit log writes how many lines about rejected commands the consumer left out."""
    audit = AuditLog(lambda: 0.0)
    parts = replace(make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics()), audit=audit)
    for _ in range(12):
        memory_broker.send(command_address("acme", "schedule-timer"), b"not JSON")
    subscription = await memory_broker.subscribe()
    await parts.consumer([]).handle(subscription, await subscription.next_batch(BATCH))
    await audit.tick(NOW)
    counts = [vars(line)["count"] for line in caplog.records if line.message == "audit lines left out"]
    assert counts == [2]


async def test_consumer_has_the_outages_of_the_instance(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the database that the consumer and a loop meet is logged once."""

    async def fail(_tx: Transaction, _commands: Sequence[Command], _now: int) -> NoReturn:
        raise DatabaseUnavailableError("gone")

    async def wake(_at: int, _loop: str | None) -> None:
        """Wake no loop."""

    parts = make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics())
    memory_broker.send(command_address(), schedule_timer())
    subscription = await memory_broker.subscribe()
    consumer = parts.consumer([Route(SLICE.commands, fail, wake)])
    await consumer.handle(subscription, await subscription.next_batch(BATCH))
    parts.outages.record_failure("gone", loop="timers")
    lines = [line for line in caplog.records if line.message == "the database is unavailable"]
    assert [vars(line)["part"] for line in lines] == ["commands"]


async def test_retention_goes_on_after_a_full_batch(sqlite: SqliteDatabase) -> None:
    """Retention goes on soon if it deleted a batch or more. A slice with several kinds of rows may delete more."""
    found: list[int | None] = []
    for deleted in (499, 500, 740):

        async def delete(*_: object, deleted: int = deleted) -> int:
            return deleted

        found.append((await Retention(sqlite, RETENTION, delete, monotonic=lambda: 0.0).tick(NOW)).next_at)
    assert found == [None, NOW + 5, NOW + 5]
