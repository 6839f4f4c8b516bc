"""What the parts of an instance get from its settings."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import pytest

from tests.harness.builders import command_address, schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.route import Route
from timer_service.core.limits.audit import AuditLog
from timer_service.core.ports.database import Transaction
from timer_service.core.service.upkeep import Retention
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Command
from timer_service.timers import SLICE

RETENTION = timedelta(days=1)


async def wake_nothing() -> None:
    """Wake no loop."""


async def test_reader_has_the_audit_log_of_the_instance(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop of the audit log writes how many lines about rejected commands the reader left out."""
    audit = AuditLog(lambda: 0.0)
    parts = replace(make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics()), audit=audit)
    for _ in range(12):
        memory_broker.send(command_address("acme", "schedule-timer"), b"not JSON")
    await catch_up(parts.reader([], wake_nothing))
    await audit.tick(NOW)
    counts = [vars(line)["count"] for line in caplog.records if line.message == "audit lines left out"]
    assert counts == [2]


async def test_reader_has_the_outages_of_the_instance(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """An outage of the database that the reader and a loop meet is logged once."""
    failed = asyncio.Event()

    async def fail(_tx: Transaction, _commands: Sequence[Command], _now: int) -> NoReturn:
        failed.set()
        raise DatabaseUnavailableError("gone")

    async def wake(_at: int, _loop: str | None) -> None:
        """Wake no loop."""

    parts = make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics())
    memory_broker.send(command_address(), schedule_timer())
    reader = parts.reader([Route(SLICE.commands, fail, wake)], wake_nothing)
    running = asyncio.create_task(reader.run())
    await failed.wait()
    await reader.stop()
    await running
    parts.outages.record_failure("gone", loop="timers")
    lines = [line for line in caplog.records if line.message == "the database is unavailable"]
    assert [vars(line)["part"] for line in lines] == ["commands"]


async def test_retention_goes_on_after_a_full_batch(sqlite: SqliteDatabase) -> None:
    """Retention goes on soon if it deleted a batch or more. A slice with several kinds of rows may delete more."""
    found: list[int | None] = []
    for deleted in (499, 500, 740):

        async def delete(*_: object, deleted: int = deleted) -> int:
            return deleted

        found.append((await Retention(sqlite, RETENTION, delete).tick(NOW)).next_at)
    assert [at and NOW < at < NOW + 60_000 for at in found] == [None, True, True]
