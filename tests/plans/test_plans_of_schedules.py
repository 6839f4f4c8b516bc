"""Query plans of the schedules slice: an index on both engines, with and without statistics, and no sort."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, STATISTICS, FilledDatabase, Statistics, filled_database
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.row_counts import overdue_sql
from timer_service.schedules import store
from timer_service.schedules.backfill import store as backfill_store
from timer_service.schedules.backfill.store import BACKFILLS
from timer_service.schedules.messages import ShownStatus
from timer_service.schedules.store import COUNTED, LIVE, SCHEDULES, TIMED

ACTIVE = """
INSERT INTO schedules (
    tenant_id, schedule_id, status, every_ms, zone, jitter_ms, catch_up, late_by_ms, catch_up_limit, data_size,
    after_at, slot_at, available_at, fired_count, is_paused, created_at, created_epoch, created_sequence, defined_epoch,
    defined_sequence
)
SELECT 'tenant-' || n % 100, 'schedule-' || n, 'active', 60000, 'UTC', 0, 'last', 60000, 100, 0,
    n, n + 1, n + 1, 0, 0, n, 1, n, 1, n
FROM generate_series(1, $1::bigint) AS n
"""
WAITING = """
INSERT INTO schedules (
    tenant_id, schedule_id, status, every_ms, zone, jitter_ms, catch_up, late_by_ms, catch_up_limit, data_size,
    after_at, slot_at, available_at, fired_count, is_paused, created_at, created_epoch, created_sequence, defined_epoch,
    defined_sequence
)
SELECT CASE WHEN n % 10 = 0 THEN 'tenant-2' ELSE 'tenant-1' END, 'waiting-' || n, 'active', 60000, 'UTC', 86400000,
    'last', 60000, 100, 0,
    0, 1, CASE WHEN n % 10 = 0 THEN 400 ELSE 86400000 + n END, 0, 0, n, 1, n, 1, n
FROM generate_series(1, $1::bigint) AS n
"""
"""Many schedules of one tenant that wait for their jitter, and a tenth as many due ones of another tenant."""
ENDED = """
INSERT INTO schedules (
    tenant_id, schedule_id, status, data_size, after_at, fired_count, is_paused, created_at, ended_at, created_epoch,
    created_sequence, defined_epoch, defined_sequence
)
SELECT 'tenant-' || n % 100, 'deleted-' || n, 'deleted', 0, n, 0, 0, n, n, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
"""

BACKFILL_ROWS = """
INSERT INTO schedule_backfills (
    tenant_id, position_epoch, position_sequence, schedule_id, from_at, to_at, slot_limit, after_at, fired_count,
    skipped_count, every_ms, zone, jitter_ms, data_size, available_at, causation_id
)
SELECT 'tenant-' || n % 100, 1, n, 'schedule-' || n % 1000, 0, n, 9, -1, 0, 0, 60000, 'UTC', 0, 0, n, 'id'
FROM generate_series(1, $1::bigint) AS n
"""

KEY = "Index Scan schedules_pkey"
BACKFILL = "Index Scan schedule_backfills_pkey"
TURNS = "Index Only Scan schedule_backfills_turns"
DUE = "Index Scan schedules_available"
PARTIAL = ("SCAN schedules USING COVERING INDEX schedules_available", "SCAN schedules USING INDEX schedules_failing")
"""Reads of a whole partial index, whose predicate is the condition."""


PLANS = {
    "a schedule, locked": (store._FIND_LOCKED, ["LockRows", KEY]),
    "the data of a schedule": (store._SQL["load_data"], [KEY]),
    "a changed schedule": (store._SQL["update"], [KEY]),
    "a fired schedule": (store._SQL["advance"], [KEY]),
    "due schedules": (SCHEDULES.sql("due"), ["LockRows", DUE]),
    "due schedules of a tenant": (SCHEDULES.sql("due_of_tenant"), ["Index Scan schedules_due"]),
    "a due schedule": (SCHEDULES.sql("due_by_key"), ["LockRows", KEY]),
    "how many are due": (SCHEDULES.sql("count_available"), ["Index Only Scan schedules_available"]),
    "when the next is due": (SCHEDULES.sql("next_available"), ["Index Only Scan schedules_available"]),
    "overdue schedules": (overdue_sql(SCHEDULES), ["Index Only Scan schedules_available"]),
    "a page": (store._SQL["page"].format(status=ShownStatus.ACTIVE), ["Index Scan schedules_by_status"]),
    "active schedules, counted": (COUNTED[0].sql, ["Index Only Scan schedules_available"]),
    "failing schedules, counted": (COUNTED[1].sql, ["Index Only Scan schedules_failing"]),
    "the schedules of a tenant, counted": (LIVE.sql, ["Index Only Scan schedules_by_status"]),
    "the end of a page of the clock repair": (TIMED[0].sql("page_end"), ["Index Only Scan schedules_available"]),
    "rows with a wrong instant": (TIMED[0].sql("find_wrong"), [DUE]),
    "due backfills": (BACKFILLS.sql("oldest_of_tenant"), ["LockRows", TURNS, BACKFILL]),
    "when the next portion is due": (
        BACKFILLS.sql("next_available"),
        ["Index Only Scan schedule_backfills_available"],
    ),
    "who created a schedule": (backfill_store._SQL["find_created"], [KEY]),
    "the data of a backfill": (backfill_store._SQL["load_data"], [BACKFILL]),
    "a backfill after a portion": (backfill_store._SQL["save"], [BACKFILL]),
    "a backfill that failed": (BACKFILLS.sql("postpone"), [BACKFILL]),
    "a backfill that has ended": (backfill_store._SQL["delete"], [BACKFILL]),
    "the backfills of a schedule": (
        backfill_store._SQL["of_schedule"],
        ["Index Scan schedule_backfills_of_schedule"],
    ),
    "the backfills of a tenant, counted": (backfill_store.OPEN.sql, ["Index Only Scan schedule_backfills_of_schedule"]),
    "backfills with a wrong instant": (
        backfill_store.TIMED.sql("find_wrong"),
        ["Index Only Scan schedule_backfills_available"],
    ),
}


@pytest.fixture(scope="module", params=STATISTICS)
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[FilledDatabase]:
    """Return a database with many active and deleted schedules."""
    with filled_database(databases, [ACTIVE, ENDED, BACKFILL_ROWS], (20_000, request.param)) as database:
        yield database


def test_plans_on_postgres(filled: FilledDatabase) -> None:
    """Every frequent statement uses its index, also on tables without statistics."""
    for mode in MODES:
        found = {name: filled.plan(sql, mode) for name, (sql, _) in PLANS.items()}
        assert found == {name: nodes for name, (_, nodes) in PLANS.items()}


@pytest.mark.slow
def test_plans_with_many_waiting_schedules(databases: Databases) -> None:
    """If most schedules wait for their jitter, and the statistics say so, the due ones are still found by index."""
    names = ("due schedules", "due schedules of a tenant", "how many are due", "when the next is due")
    with filled_database(databases, [WAITING], (100_000, Statistics.FRESH)) as filled:
        for mode in MODES:
            found = {name: filled.plan(PLANS[name][0], mode) for name in names}
            assert found == {name: PLANS[name][1] for name in names}


def test_tenants_and_retention_on_postgres(filled: FilledDatabase) -> None:
    """The tenants are found by steps through an index, and retention reads only old rows."""
    for mode in MODES:
        tenants = filled.plan(SCHEDULES.sql("due_tenants"), mode)
        retention = filled.plan(store._SQL["delete_settled"], mode)
        assert {node for node in tenants if "schedules" in node} == {"Index Only Scan schedules_due"}
        assert {node for node in retention if "schedules" in node} == {"Index Scan schedules_ended", KEY}
        backfilling = filled.plan(BACKFILLS.sql("due_tenants"), mode)
        read = {node for node in backfilling if "backfills" in node}
        assert TURNS in read
        assert read <= {TURNS, "Index Scan schedule_backfills_pkey", "Index Only Scan schedule_backfills_pkey"}
        assert not [node for node in (*backfilling, *tenants, *retention) if "Seq Scan" in node or node == "Sort"]


async def test_plans_on_sqlite(sqlite: SqliteDatabase) -> None:
    """On SQLite no frequent statement scans or sorts, for one or for many parameter sets."""
    statements = {name: sql for name, (sql, _) in PLANS.items()}
    for name, sql in statements.items():
        parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        async with sqlite.transaction() as tx:
            once = [row["detail"] for row in await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            many = [row["detail"] for row in await tx.fetch_each(f"EXPLAIN QUERY PLAN {sql}", [parameters])]
        steps = [step for step in once if not step.startswith(("CO-ROUTINE", "SCALAR", "SCAN counted", *PARTIAL))]
        assert all(step.startswith("SEARCH") for step in steps), (name, once)
        assert [step for step in many if not step.startswith("SCAN json_each VIRTUAL TABLE")] == once, (name, many)


async def test_retention_and_tenants_on_sqlite(sqlite: SqliteDatabase) -> None:
    """On SQLite too."""
    for sql, index in (
        (SCHEDULES.sql("due_tenants"), "schedules_due"),
        (BACKFILLS.sql("due_tenants"), "schedule_backfills_turns"),
        (store._SQL["delete_settled"], "schedules_ended"),
    ):
        parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        async with sqlite.transaction() as tx:
            steps = [row["detail"] for row in await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        assert [step for step in steps if " USING" in step and index in step], steps
        assert not [step for step in steps if step.startswith("SCAN schedule") or "TEMP B-TREE" in step], steps
