"""Query plans of the page: a search of an index for each tenant on both engines, with and without statistics."""

import re
from collections.abc import Iterator
from itertools import product

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, STATISTICS, FilledDatabase, filled_database
from tests.plans.firings import ALL_FIRINGS
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.ui.tenants import Rows
from timer_service.ui.views import TENANT_ROWS
from timer_service.ui.views.failed import KINDS

POSITIONS = "started_epoch, started_sequence, cancelled_epoch, cancelled_sequence"
TIMERS = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, reached_at, position_epoch, position_sequence,
    available_at
)
SELECT 'tenant-' || (n % 50), 'call-' || n, state, n, 'event-' || n, 0, CASE WHEN state = 'Reached' THEN n END,
    1, n, CASE WHEN state = 'Scheduled' THEN n END
FROM (
    SELECT n, (ARRAY['Scheduled', 'Reached', 'Scheduled', 'Reached', 'Failed'])[1 + n % 5] AS state
    FROM generate_series(1, $1::bigint) AS n
) AS rows
"""
EVENTS = """
INSERT INTO outbox (tenant_id, event_id, message, body, added_at, ordinal, state, available_at)
SELECT 'tenant-' || (n % 50), md5(n::text), 'hello', '{}', n, n, CASE WHEN n % 9 = 0 THEN 'Buried' ELSE 'Waiting' END,
    CASE WHEN n % 9 <> 0 THEN n END
FROM generate_series(1, $1::bigint) AS n
"""
SIGNALS = """
INSERT INTO work_signals (
    tenant_id, signal_id, status, work_item_id, trigger_kind, trigger_spec, created_at, defined_epoch, defined_sequence,
    since_epoch, since_sequence
)
SELECT 'tenant-' || (n % 50), 'signal-' || n, 'active', 'item-' || (n % 1000), 'event', '{}', n, 1, n, 1, n
FROM generate_series(1, $1::bigint) AS n
"""
RUNS = """
INSERT INTO runs (
    tenant_id, run_id, status, digest, open_jobs, created_at, sweep_at, position_epoch, position_sequence
)
SELECT 'tenant-' || (n % 50), 'run-' || n, 'running', '', 20000, n, n, 1, n FROM generate_series(1, $1::bigint) AS n
"""
SCHEDULES = """
INSERT INTO schedules (
    tenant_id, schedule_id, status, every_ms, zone, jitter_ms, catch_up, late_by_ms, catch_up_limit, data_size,
    after_at, slot_at, available_at, fired_count, is_paused, created_at, created_epoch, created_sequence, defined_epoch,
    defined_sequence, last_error
)
SELECT 'tenant-' || (n % 50), 'schedule-' || n, 'active', 60000, 'UTC', 0, 'last', 60000, 100, 0,
    n, n + 1, n + 1, 0, 0, n, 1, n, 1, n, CASE WHEN n % 9 = 0 THEN 'no zone' END
FROM generate_series(1, $1::bigint) AS n
"""
WORKFLOWS = f"""
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, due_at, available_at, digest, created_at, blocks, {POSITIONS}
)
SELECT 'tenant-' || (n % 50), 'w-' || n, 'order', 'default', 'waiting', n, n, 'd', n,
    CASE WHEN n % 9 = 0 THEN 3 ELSE 0 END, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
"""
ENDED = f"""
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, digest, created_at, ended_at, failure_code, {POSITIONS}
)
SELECT 'tenant-' || (n % 50), 'e-' || n, 'order', 'default', CASE n % 9 WHEN 0 THEN 'failed' ELSE 'completed' END,
    'd', n, n, CASE n % 9 WHEN 0 THEN 'CRASHED' END, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
"""
FILL = [TIMERS, EVENTS, SIGNALS, ALL_FIRINGS, RUNS, SCHEDULES, WORKFLOWS, ENDED]

PARTIAL = {
    ("timer_schedules", "state = 'Failed'"): "timer_schedules_failed",
    ("outbox", "state = 'Buried'"): "outbox_buried",
    ("work_signal_firings", "status = 'failed'"): "work_signal_firings_failed",
    ("workflows", "status = 'failed'"): "workflows_failed",
    ("workflows", "blocks >= 3 AND ended_at IS NULL"): "workflows_blocked",
    ("schedules", "last_error IS NOT NULL"): "schedules_failing",
}
"""The index that has exactly the rows of a kind. With another one, a table with few such rows would be read whole."""
STATEMENTS = [(rows, rows.sql(name)) for rows in TENANT_ROWS for name in ("page", "count")] + [
    (kind.rows, kind.first) for kind in KINDS
]


def test_each_kind_is_pinned() -> None:
    """Rows are either all of a table, or those of a partial index."""
    assert {rows for rows in TENANT_ROWS if rows.where != "TRUE"} == {Rows(*key) for key in PARTIAL}


@pytest.mark.parametrize("analyzed", [True, False])
async def test_sqlite(sqlite: SqliteDatabase, *, analyzed: bool) -> None:
    """Each table is searched by the tenant, in an index that has only such rows."""
    async with sqlite.transaction() as tx:
        if analyzed:
            await tx.execute("ANALYZE")
        for rows, sql in STATEMENTS:
            plan = await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", dict.fromkeys(re.findall(r":(\w+)", sql), 1))
            reads = [row["detail"] for row in plan if rows.table in row["detail"]]
            index = PARTIAL.get(rows, f"sqlite_autoindex_{rows.table}_1")
            wanted = rf"SEARCH {rows.table} USING (COVERING )?INDEX {index} \(tenant_id[=>]\?\)"
            assert len(reads) == sql.count(rows.table)
            assert all(re.match(wanted, read) for read in reads), (sql, reads)
            assert not [row["detail"] for row in plan if "TEMP B-TREE" in row["detail"]], sql


@pytest.fixture(scope="module", params=STATISTICS)
def filled(databases: Databases, request: pytest.FixtureRequest) -> Iterator[FilledDatabase]:
    """Make tables with 20,000 rows each."""
    with filled_database(databases, FILL, (20_000, request.param)) as database:
        yield database


def test_postgres(filled: FilledDatabase) -> None:
    """Each table is read by an index that has only such rows, and nothing is sorted."""
    for mode, (rows, sql) in product(MODES, STATEMENTS):
        plan = filled.plan(sql, mode)
        (read,) = [node for node in plan if node not in {"CTE Scan", "WorkTable Scan"}]
        index = PARTIAL.get(rows, rf"{rows.table}_\w+")  # each one begins with the tenant
        assert re.fullmatch(f"Index( Only)? Scan {index}", read), (mode, sql, plan)
        assert " Only" in read or " AS reason" in sql, (mode, sql, plan)
