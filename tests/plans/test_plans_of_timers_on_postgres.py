from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, SIZES, FilledDatabase, Statistics, filled_database
from timer_service.core.due.row_counts import overdue_sql
from timer_service.core.service.clock_repair import leased_rows
from timer_service.timers import cancellations
from timer_service.timers import store as timers
from timer_service.timers.cancellations import CANCELLATIONS
from timer_service.timers.messages import State
from timer_service.timers.store import PENDING, STORED_DATA, TIMERS

ROWS = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, reached_at, cancelled_at,
    position_epoch, position_sequence, available_at
)
SELECT 'tenant-' || (n % 50), 'call-' || n, state, n, 'event-' || n, 0,
    CASE WHEN state = 'Reached' THEN n END, CASE WHEN state = 'Cancelled' THEN n END,
    1, n, CASE WHEN state = 'Scheduled' THEN n END
FROM (
    SELECT n, (ARRAY['Scheduled', 'Reached', 'Scheduled', 'Cancelled', 'Failed'])[1 + n % 5] AS state
    FROM generate_series(1, $1::bigint) AS n
) AS rows
"""

PENDING_ROWS = """
INSERT INTO timer_schedules (
    tenant_id, service_call_id, state, due_at, event_id, registered_at, position_epoch, position_sequence, available_at
)
SELECT 'tenant', 'call-' || n, 'Scheduled', 1, 'event-' || n, 0, 1, n, 1 FROM generate_series(1, $1::bigint) AS n
"""

CANCELLATION_ROWS = """
INSERT INTO timer_cancellations (
    tenant_id, position_epoch, position_sequence, prefix, command_id, next_call_id, available_at
)
SELECT 'tenant-' || (n % 50), 1, n, 'call-' || n, 'command-' || n, 'call-' || n, n
FROM generate_series(1, $1::bigint) AS n
"""

KEY = "Index Scan timer_schedules_pkey"
TEXT = "Index Scan long_texts_pkey"
UNFINISHED = "timer_cancellations_unfinished"
ONE_CANCELLATION = "Index Scan timer_cancellations_pkey"
AVAILABLE = "timer_schedules_available"
SCHEDULED = "timer_schedules_scheduled"
REPAIRED = leased_rows(TIMERS, timedelta(seconds=30))
STATEMENTS = {
    "claim": (TIMERS.sql("claim"), ["LockRows", f"Index Scan {AVAILABLE}", "CTE Scan", "Tid Scan"]),
    "claim of a tenant": (
        TIMERS.sql("claim_of_tenant"),
        ["LockRows", f"Index Scan {SCHEDULED}", "CTE Scan", "Tid Scan"],
    ),
    "next available": (TIMERS.sql("next_available"), [f"Index Only Scan {AVAILABLE}"]),
    "count available": (TIMERS.sql("count_available"), [f"Index Only Scan {AVAILABLE}"]),
    "complete a claim": (
        TIMERS.sql("complete_claim_shared"),
        ["LockRows", f"Index Scan {AVAILABLE}", "CTE Scan", "Tid Scan"],
    ),
    "find held": (TIMERS.sql("still_held"), [KEY]),
    "complete": (TIMERS.sql("complete"), [KEY]),
    "retry": (TIMERS.sql("retry"), [KEY]),
    "release": (TIMERS.sql("release"), [KEY]),
    "find": (timers._SQL["find"], [KEY, TEXT]),
    "find and lock": (timers._FIND_LOCKED, ["LockRows", KEY, TEXT]),
    "move": (timers._SQL["move"], [KEY]),
    "overdue": (overdue_sql(TIMERS), [f"Index Only Scan {AVAILABLE}"]),
    "pending timers of a tenant": (PENDING.sql, [f"Index Only Scan {SCHEDULED}"]),
    "large data of a tenant": (STORED_DATA.sql, ["Index Only Scan timer_schedules_large"]),
    "oldest due": (timers._SQL["oldest_due"], [f"Index Only Scan {SCHEDULED}"]),
    "the end of a page of the clock repair": (REPAIRED.sql("page_end"), [f"Index Only Scan {AVAILABLE}"]),
    "rows to repair": (REPAIRED.sql("find_wrong"), [f"Index Scan {AVAILABLE}"]),
    "repair": (
        REPAIRED.sql("repair"),
        ["LockRows", f"Index Scan {AVAILABLE}", "CTE Scan", "Tid Scan"],
    ),
    "next page": (CANCELLATIONS.sql("next_available"), ["Index Only Scan timer_cancellations_available"]),
    "due cancellations": (
        CANCELLATIONS.sql("oldest_of_tenant"),
        ["LockRows", f"Index Only Scan {UNFINISHED}", ONE_CANCELLATION],
    ),
    "page of a cancellation": (cancellations._SQL["page"], ["Index Only Scan timer_schedules_pkey"]),
    "cancel a page": (cancellations._SQL["cancel"], [KEY]),
    "save a cancellation": (cancellations._SQL["save"], [ONE_CANCELLATION]),
    "delete a cancellation": (cancellations._SQL["delete"], [ONE_CANCELLATION]),
    "delete settled": (
        timers._SQL["delete_settled"],
        ["CTE Scan", "LockRows", "Index Scan timer_schedules_settled", KEY],
    ),
} | {
    f"list {state}": (
        timers._SQL["page"].format(where=timers._WHERE[state]),
        [f"Index Scan timer_schedules_{index}", TEXT],
    )
    for state, index in zip(State, ("scheduled", "reached", "expired", "cancelled", "failed"), strict=True)
}


@pytest.fixture(scope="module", params=SIZES)
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[FilledDatabase]:
    with filled_database(databases, [ROWS, CANCELLATION_ROWS], request.param) as database:
        yield database


def test_plans(filled: FilledDatabase) -> None:
    """Every frequent statement uses its index and sorts nothing, with any statistics and any plan mode."""
    for mode in MODES:
        found = {name: filled.plan(sql, mode) for name, (sql, _) in STATEMENTS.items()}
        assert found == {name: nodes for name, (_, nodes) in STATEMENTS.items()}, mode


def test_pending_tenants(filled: FilledDatabase) -> None:
    """Each tenant with rows to fire is found by one index lookup."""
    for mode in MODES:
        found = filled.plan(TIMERS.sql("due_tenants"), mode)
        assert set(found) == {f"Index Only Scan {SCHEDULED}", "WorkTable Scan", "CTE Scan"}, mode


@pytest.mark.parametrize("statistics", [Statistics.NONE, pytest.param(Statistics.OUTGROWN, marks=pytest.mark.slow)])
def test_pending_tenants_while_nothing_has_fired(databases: Databases, statistics: Statistics) -> None:
    """The primary key is the smaller index then. It is not used, because it keeps the timers that have fired."""
    with filled_database(databases, [PENDING_ROWS], (1000, statistics)) as database:
        for mode in MODES:
            found = database.plan(TIMERS.sql("due_tenants"), mode)
            assert set(found) == {f"Index Only Scan {SCHEDULED}", "WorkTable Scan", "CTE Scan"}, mode


def test_tenants_of_cancellations(filled: FilledDatabase) -> None:
    """Each tenant with cancellations is found by one index lookup."""
    for mode in MODES:
        found = filled.plan(CANCELLATIONS.sql("due_tenants"), mode)
        assert set(found) == {f"Index Only Scan {UNFINISHED}", "WorkTable Scan", "CTE Scan"}, mode
