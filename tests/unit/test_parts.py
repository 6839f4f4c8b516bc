"""What the parts of an instance get from its settings."""

from dataclasses import replace
from datetime import timedelta

from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.budget import LEAST_MEMORY_BYTES, Budget
from timer_service.core.query_queue import QueryLimits
from timer_service.core.retention import Retention

RETENTION = timedelta(days=1)
BUDGET = Budget.of(LEAST_MEMORY_BYTES)


async def test_parts_share_the_budget(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> None:
    """The consumer, the queries and the relays get their shares of the memory budget of the instance."""
    parts = replace(make_parts(sqlite, memory_broker, ManualClock(), RecordingMetrics()), budget=BUDGET)
    assert parts.queries([])._turns._queue._limits == QueryLimits.of(BUDGET.queries)
    assert parts.consumer([])._part_bytes == BUDGET.part


async def test_retention_goes_on_after_a_full_batch(sqlite: SqliteDatabase) -> None:
    """Retention goes on soon if it deleted a batch or more. A slice with several kinds of rows may delete more."""
    found: list[int | None] = []
    for deleted in (499, 500, 740):

        async def delete(*_: object, deleted: int = deleted) -> int:
            return deleted

        found.append((await Retention(sqlite, RETENTION, delete).tick(NOW)).next_at)
    assert found == [None, NOW + 50, NOW + 50]
