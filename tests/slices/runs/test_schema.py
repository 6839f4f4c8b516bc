"""The CHECK constraints of the tables of runs."""

import pytest

from tests.harness.cases import case
from tests.harness.clock import ManualClock
from tests.harness.memory_broker import MemoryBroker
from tests.harness.runs import Runs
from timer_service.core.ports.database import Database

FORBIDDEN = {
    "runs": [
        "status = 'done'",
        "status = NULL",
        "status = 'success'",
        "status = 'rejected', settled_at = 1, sweep_at = NULL, open_jobs = 0",
        "settled_at = 1",
        "sweep_at = NULL",
        "digest = NULL",
        "flaw_code = 'CYCLE'",
        "open_jobs = -1",
        "failed_jobs = -1",
        "open_groups = -1",
        "pending_bytes = -1",
        "row_count = -1",
        "stored_bytes = -1",
        "payload_bytes = -1",
        "evaluated = 2",
        "attempt = 0",
        "status = 'cancelling'",
        "has_outputs = 2",
    ],
    "run_jobs": [
        "status = 'done'",
        "status = 'success'",
        "status = 'dispatched', ready_at = NULL",
        "status = 'success', settled_at = 1, ready_at = NULL",
        "settled_at = 1",
        "open_needs = -1",
        "open_groups = -1",
        "ready_at = 1, open_needs = 1",
        "stale_at = 1, ready_at = NULL",
        "stale_after_ms = 0",
        "always = 2",
        "attempt = 0",
        "outputs = '{}'",
        "payload = '1'",
        "payload_bytes = 1",
    ],
    "run_edges": ["needs = NULL, needed_by = NULL"],
    "run_group_needs": ["if_failed = 'wait'"],
    "run_groups": ["digest = 'x'", "resolved_at = 1"],
}


async def test_schema_refuses(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Both engines refuse a row that would break a promise of runs."""
    runs = Runs(store, memory_broker, clock)
    await runs.start({"lint": [], "test": ["lint"], "last": [{"group": "more"}]}, "more")
    for table, changes in FORBIDDEN.items():
        for change in changes:
            with case(table, change), pytest.raises(Exception, match=r"(?i)check constraint"):
                await runs.sql(f"UPDATE {table} SET {change}")
