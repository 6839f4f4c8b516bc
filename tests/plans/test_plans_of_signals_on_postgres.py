from collections.abc import Iterator
from datetime import timedelta
from itertools import product

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, SIZES, FilledDatabase, filled_database
from tests.plans.firings import ALL_FIRINGS
from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.row_counts import overdue_sql
from timer_service.core.events import outbox
from timer_service.core.events.outbox import OUTBOX
from timer_service.core.service.clock_repair import leased_rows
from timer_service.signals import firing_store, store
from timer_service.signals.firing_store import COUNTED, FIRINGS, TIMED

ITEMS = """
INSERT INTO work_items (tenant_id, work_item_id, created_at)
SELECT 'tenant-' || (n % 50), 'item-' || n, n FROM generate_series(1, $1::bigint) AS n
"""
EVENTS = """
INSERT INTO work_item_events (
    tenant_id, work_item_id, event_id, to_status, occurred_at, recorded_at, position_epoch, position_sequence,
    evaluate_at, evaluated_to
)
SELECT 'tenant-' || (n % 50), 'item-' || (n % 1000), 'event-' || n, 'blocked', n, n, 1, n,
    CASE WHEN n % 9 = 0 THEN n END, ''
FROM generate_series(1, $1::bigint) AS n
"""
SIGNALS = """
INSERT INTO work_signals (
    tenant_id, signal_id, status, work_item_id, trigger_kind, trigger_spec, created_at, last_fired_at, ended_at,
    defined_epoch, defined_sequence, since_epoch, since_sequence
)
SELECT 'tenant-' || (n % 50), 'signal-' || n, status, 'item-' || (n % 1000), 'event', '{}', n, n,
    CASE WHEN status IN ('resolved', 'cancelled') THEN n END, 1, n, 1, n
FROM (
    SELECT n, (ARRAY['active', 'paused', 'fired', 'resolved', 'active', 'cancelled'])[1 + n % 6] AS status
    FROM generate_series(1, $1::bigint) AS n
) AS rows
"""
OUTBOX_ROWS = """
INSERT INTO outbox (tenant_id, event_id, message, body, added_at, ordinal, state, available_at)
SELECT 'tenant-' || (n % 50), md5(n::text), 'hello', '{}', n, n, CASE WHEN n % 9 = 0 THEN 'Buried' ELSE 'Waiting' END,
    CASE WHEN n % 9 <> 0 THEN n END
FROM generate_series(1, $1::bigint) AS n
"""
PENDING = {FIRINGS.name: "work_signal_firings_pending", OUTBOX.name: "outbox_pending"}


def by_key(table: str) -> str:
    return f"Index Scan {table}_pkey"


def lease_plans(table: LeasedTable) -> dict[str, tuple[str, list[str]]]:
    """Return the expected plans of the lease statements on a table."""
    key, available = by_key(table.name), f"{table.name}_available"
    wanted = {
        "claim": ["LockRows", f"Index Scan {available}", "CTE Scan", "Tid Scan"],
        "claim_of_tenant": ["LockRows", f"Index Scan {PENDING[table.name]}", "CTE Scan", "Tid Scan"],
        "count_available": [f"Index Only Scan {available}"],
        "next_available": [f"Index Only Scan {available}"],
        "complete_claim_shared": ["LockRows", f"Index Scan {available}", "CTE Scan", "Tid Scan"],
        **{name: [key] for name in ("complete", "retry", "release", "bury")},
    }
    statements = {f"{table.name}, {name}": (table.sql(name), nodes) for name, nodes in wanted.items()}
    repaired = leased_rows(table, timedelta(seconds=30))
    return statements | {
        f"{table.name}, overdue": (overdue_sql(table), [f"Index Only Scan {available}"]),
        f"{table.name}, end of a page to repair": (repaired.sql("page_end"), [f"Index Only Scan {available}"]),
        f"{table.name}, rows to repair": (repaired.sql("find_wrong"), [f"Index Scan {available}"]),
    }


STATEMENTS = {
    **lease_plans(OUTBOX),
    "due firings": (FIRINGS.sql("due"), ["LockRows", "Index Scan work_signal_firings_available"]),
    "due firings of a tenant": (FIRINGS.sql("due_of_tenant"), ["Index Scan work_signal_firings_pending"]),
    "a due firing": (FIRINGS.sql("due_by_key"), ["LockRows", by_key("work_signal_firings")]),
    "when the next firing is due": (FIRINGS.sql("next_available"), ["Index Only Scan work_signal_firings_available"]),
    "overdue firings": (overdue_sql(FIRINGS), ["Index Only Scan work_signal_firings_available"]),
    "firings to repair": (TIMED.sql("find_wrong"), ["Index Scan work_signal_firings_available"]),
    **{
        f"a firing to {name}": (firing_store._SQL[name], [by_key("work_signal_firings")])
        for name in ("settle", "retry")
    },
    "firings of a definition": (
        firing_store._SQL["fail_unsettled"],
        ["Index Scan work_signal_firings_of_signal"],
    ),
    "a page of firings": (firing_store._SQL["page_of_signal"], ["Index Scan work_signal_firings_of_signal"]),
    "a page of tasks": (firing_store._SQL["tasks_of_item"], ["Index Scan work_signal_firings_tasks"]),
    "firings of a deleted signal": (
        firing_store._SQL["delete_of_signal"],
        ["CTE Scan", "LockRows", "Index Scan work_signal_firings_of_signal", by_key("work_signal_firings")],
    ),
    "old firings": (
        firing_store._SQL["delete_settled"],
        ["CTE Scan", "LockRows", "Index Scan work_signal_firings_settled", by_key("work_signal_firings")],
    ),
    "an item": (store._SQL["find_item"], ["Index Only Scan work_items_pkey"]),
    "an event": (store._SQL["find_event"], ["Index Only Scan work_item_events_pkey"]),
    "an evaluated event": (store._SQL["note_evaluated"], [by_key("work_item_events")]),
    "events to evaluate": (store.UNEVALUATED.sql("due_of_tenant"), ["Index Scan work_item_events_to_evaluate"]),
    "old events": (
        store._SQL["delete_events"],
        ["CTE Scan", "LockRows", "Index Scan work_item_events_evaluated", by_key("work_item_events")],
    ),
    **{f"a signal to {name}": (store._SQL[name], [by_key("work_signals")]) for name in ("find", "pause")},
    "a signal to delete": (
        store._SQL["delete"],
        ["Index Only Scan work_signal_firings_of_signal", by_key("work_signals")],
    ),
    "a signal to lock": (store._SQL["lock_free_key"], ["LockRows", by_key("work_signals")]),
    "signals that wait for an item": (store._SQL["waiting"], ["Index Scan work_signals_of_item"]),
    "signals of a status": (
        store._SQL["page"].format(where="trigger_kind <> '' AND status = 'active'"),
        ["Index Scan work_signals_by_status"],
    ),
    "signals of an item": (
        store._SQL["page"].format(where="work_item_id = :work_item_id AND status = 'active'"),
        ["Index Scan work_signals_of_item"],
    ),
    "signals": (store._SQL["page"].format(where="TRUE"), [by_key("work_signals")]),
    "ended signals": (store._SQL["ended"], ["LockRows", "Index Scan work_signals_ended"]),
    "failed firings": (COUNTED[1].sql, ["Index Only Scan work_signal_firings_failed"]),
    "unevaluated events": (COUNTED[2].sql, ["Index Only Scan work_item_events_to_evaluate"]),
    "an event that waits": (outbox._SQL["find_waiting"], ["Index Scan outbox_pending"]),
    "buried events": (outbox.COUNTED[1].sql, ["Index Only Scan outbox_buried"]),
    "a page of buried events": (outbox._SQL["buried_page"], ["Index Scan outbox_buried", by_key("long_texts")]),
    "a buried event, locked": (outbox._FIND_LOCKED, ["LockRows", by_key("outbox")]),
    "a buried event returned to Waiting": (outbox._SQL["requeue"], [by_key("outbox")]),
}


@pytest.fixture(scope="module", params=SIZES)
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[FilledDatabase]:
    inserts = [ITEMS, EVENTS, SIGNALS, ALL_FIRINGS, OUTBOX_ROWS]
    with filled_database(databases, inserts, request.param) as database:
        yield database


def test_plans(filled: FilledDatabase) -> None:
    """Every frequent statement uses its index and sorts nothing, with any statistics and any plan mode."""
    for mode in MODES:
        found = {name: filled.plan(sql, mode) for name, (sql, _) in STATEMENTS.items()}
        assert found == {name: nodes for name, (_, nodes) in STATEMENTS.items()}, mode


def test_tenants_with_rows_to_handle(filled: FilledDatabase) -> None:
    """Each tenant with unevaluated transitions, or with rows to fire, is found by one index lookup."""
    statements = {"work_item_events_to_evaluate": store.UNEVALUATED.sql("due_tenants")}
    statements |= {PENDING[table.name]: table.sql("due_tenants") for table in (FIRINGS, OUTBOX)}
    for mode, (index, sql) in product(MODES, statements.items()):
        found = filled.plan(sql, mode)
        assert set(found) == {f"Index Only Scan {index}", "WorkTable Scan", "CTE Scan"}, (mode, index)
