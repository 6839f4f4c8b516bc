"""Query plans of the workflows slice: an index on both engines, with and without statistics, and no sort."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, STATISTICS, FilledDatabase, filled_database
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.workflows import effect_store, queries, store, upkeep
from timer_service.workflows.messages import WorkflowStatus
from timer_service.workflows.store import COUNTED, OPEN, STORED
from timer_service.workflows.tasks import lanes, registry
from timer_service.workflows.upkeep import TIMED

POSITIONS = "started_epoch, started_sequence, cancelled_epoch, cancelled_sequence"
WAITING = f"""
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, due_at, available_at, digest, created_at, deadline_at, overdue_at,
    concurrency_key, input_bytes, blocks, {POSITIONS}
)
SELECT 'tenant-' || n % 100, 'w-' || n, 'type-' || n % 3, 'default', 'waiting', n, n, 'd', n,
    CASE WHEN n % 10 = 0 THEN n END, CASE WHEN n % 10 = 0 THEN n END, CASE WHEN n % 10 = 0 THEN 'key-' || n END,
    CASE WHEN n % 10 = 0 THEN 2000 ELSE 0 END, CASE WHEN n % 100 = 0 THEN 3 ELSE 0 END, 1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
"""
ENDED = f"""
INSERT INTO workflows (
    tenant_id, workflow_id, type, queue, status, digest, created_at, ended_at, failure_code, {POSITIONS}
)
SELECT 'tenant-' || n % 100, 'e-' || n, 'type-' || n % 3, 'default',
    CASE n % 20 WHEN 0 THEN 'failed' ELSE 'completed' END, 'd', n, n, CASE n % 20 WHEN 0 THEN 'CRASHED' END,
    1, n, 0, 0
FROM generate_series(1, $1::bigint) AS n
"""
EFFECTS = """
INSERT INTO workflow_effects (tenant_id, workflow_id, name, n, kind, seq, status)
SELECT 'tenant-' || n % 100, 'w-' || n % 1000, 'step', n / 1000, 'step',
    CASE WHEN n % 7 > 0 THEN n / 1000 + 1 END, 'done'
FROM generate_series(1, $1::bigint) AS n
"""
MESSAGES = """
INSERT INTO workflow_messages (
    tenant_id, workflow_id, name, position_epoch, position_sequence, message_id, size, sent_at, taken_at
)
SELECT 'tenant-' || n % 100, 'w-' || n % 1000, 'approval', 1, n, 'm-' || n, 0, n, CASE WHEN n % 2 = 0 THEN n END
FROM generate_series(1, $1::bigint) AS n
"""
DATA = """
INSERT INTO workflow_data (tenant_id, workflow_id, input)
SELECT 'tenant-' || n % 100, 'w-' || n, '1' FROM generate_series(1, $1::bigint) AS n
"""

KEY = "Index Scan workflows_pkey"
EFFECT = "Index Scan workflow_effects_pkey"
UNSEEN = "Index Scan workflow_effects_unseen"
SEEN = "Index Scan workflow_effects_seen"
MESSAGE = "Index Scan workflow_messages_pkey"
UNREAD = "Index Scan workflow_messages_unread"
COMPLETED = queries._where_ended(WorkflowStatus.COMPLETED)
PARTIAL = (
    "SCAN workflows USING COVERING INDEX workflows_lane",
    "SCAN workflows USING INDEX workflows_failed",
    "SCAN workflows USING INDEX workflows_blocked",
)
"""Reads of a whole partial index, whose predicate is the condition."""


def of_lists(name: str, where: str) -> str:
    return queries._SQL[name].format(where=where)


def of_effects(name: str) -> str:
    return effect_store._SQL[name]


PLANS = {
    "a workflow, locked": (store._FIND_LOCKED, ["LockRows", KEY]),
    "the workflow of a slot": (store._SQL["find"], [KEY]),
    "the workflow with a concurrency key": (
        store._SQL["find_open_with_key"],
        ["Index Scan workflows_concurrency"],
    ),
    "a changed workflow": (store._SQL["update"], [KEY]),
    "a workflow that goes on": (store._SQL["advance"], [KEY]),
    "a workflow that ends": (store._SQL["finish"], [KEY]),
    "the texts of a workflow": (store._SQL["find_data"], ["Index Scan workflow_data_pkey"]),
    "deadlines that have passed": (
        store.OVERDUE.sql("due_of_tenant"),
        ["Index Scan workflows_deadline_of_tenant"],
    ),
    "a workflow that is overdue, locked": (store.OVERDUE.sql("due_by_key"), ["LockRows", KEY]),
    "a postponed deadline": (store._SQL["postpone_deadline"], [KEY]),
    "a postponed workflow": (store._SQL["postpone"], [KEY]),
    "the next deadline": (store.OVERDUE.sql("next_available"), ["Index Only Scan workflows_deadline"]),
    "an awaited message": (of_effects("is_awaited"), [UNSEEN]),
    "a page of effects that were not seen": (of_effects("page_unseen"), [UNSEEN]),
    "an effect": (of_effects("find"), [EFFECT]),
    "effects that were not seen": (of_effects("find_unseen"), [UNSEEN]),
    "the effect with a number": (of_effects("find_seen"), [SEEN]),
    "the result of an effect": (of_effects("find_result"), [EFFECT]),
    "a page of seen effects": (of_effects("page_seen"), [SEEN]),
    "a message id": (of_effects("find_message_id"), ["Index Only Scan workflow_messages_id"]),
    "the next messages": (of_effects("next_messages"), [UNREAD]),
    "a message as a result": (of_effects("copy_message"), [MESSAGE, EFFECT]),
    "a taken message": (of_effects("take_message"), [MESSAGE]),
    "open workflows": (of_lists("page", queries._OPEN), ["Index Scan workflows_open"]),
    "where a page of open workflows ends": (of_lists("page_end", queries._OPEN), ["Index Only Scan workflows_open"]),
    "ended workflows": (of_lists("page", COMPLETED), ["Index Scan workflows_by_status"]),
    "where a page of ended workflows ends": (
        of_lists("page_end", COMPLETED),
        ["Index Only Scan workflows_by_status"],
    ),
    "ended workflows, counted": (
        queries._SQL["count_ended"].replace("{status}", "completed"),
        ["Index Only Scan workflows_by_status"],
    ),
    "workflows of a clock that was ahead": (TIMED[1].sql("find_wrong"), ["Index Only Scan workflows_counted"]),
    "effects of a clock that was ahead": (TIMED[0].sql("find_wrong"), ["Index Only Scan workflow_effects_counted"]),
    "where a page of such workflows ends": (TIMED[1].sql("page_end"), ["Index Only Scan workflows_counted"]),
    "active workflows, counted": (COUNTED[0].sql, ["Index Only Scan workflows_lane"]),
    "failed workflows, counted": (COUNTED[1].sql, ["Index Only Scan workflows_failed"]),
    "blocked workflows, counted": (COUNTED[2].sql, ["Index Only Scan workflows_blocked"]),
    "workflows that wait for workers": (lanes.OVERDUE["workflows"], ["Index Only Scan workflows_lane"]),
    "the open workflows of a tenant, counted": (OPEN.sql, ["Index Only Scan workflows_open"]),
    "the bytes of a tenant": (STORED.sql, ["Index Only Scan workflows_large"]),
}


@pytest.fixture(scope="module", params=STATISTICS)
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[FilledDatabase]:
    """Return a database with many open and ended workflows, effects and messages."""
    with filled_database(databases, [WAITING, ENDED, EFFECTS, MESSAGES, DATA], (20_000, request.param)) as database:
        yield database


def test_plans_on_postgres(filled: FilledDatabase) -> None:
    """Every frequent statement uses its index, also on tables without statistics."""
    for mode in MODES:
        found = {name: filled.plan(sql, mode) for name, (sql, _) in PLANS.items()}
        assert found == {name: nodes for name, (_, nodes) in PLANS.items()}


def test_other_statements_on_postgres(filled: FilledDatabase) -> None:
    """The claim, the effects of a workflow, lists of workers and retention scan no table."""
    statements = {
        "a claim": lanes._SQL["claim"],
        "a look": lanes._SQL["look"],
        "the effects of a workflow": of_effects("find_all"),
        "open workflows, counted": queries._SQL["count_open"],
        "workers": queries._SQL["page_workers"],
        "workers that are forgotten": registry._SQL["forget"],
        "types of a queue": queries._SQL["types_of_queue"],
        **{f"retention: {name}": sql for name, sql in upkeep._SQL.items()},
    }
    for mode in MODES:
        plans = {name: filled.plan(sql, mode) for name, sql in statements.items()}
        assert [name for name, nodes in plans.items() if "Seq Scan" in nodes] == []
        assert "Sort" not in plans["a claim"]
        assert "Index Scan workflows_lane" in plans["a claim"]
        assert plans["a look"].count("Index Only Scan workflows_lane") == 2


async def test_plans_on_sqlite(sqlite: SqliteDatabase) -> None:
    """On SQLite no frequent statement scans or sorts, for one or for many parameter sets."""
    for name, (sql, _) in PLANS.items():
        parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        async with sqlite.transaction() as tx:
            once = [row["detail"] for row in await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            many = [row["detail"] for row in await tx.fetch_each(f"EXPLAIN QUERY PLAN {sql}", [parameters])]
        ignored = ("CO-ROUTINE", "SCAN counted", "CORRELATED SCALAR SUBQUERY", "SCALAR SUBQUERY", *PARTIAL)
        steps = [step for step in once if not step.startswith(ignored)]
        assert all(step.startswith("SEARCH") for step in steps), (name, once)
        assert [step for step in many if not step.startswith("SCAN json_each VIRTUAL TABLE")] == once, (name, many)


@pytest.mark.parametrize("name", ["claim", "look"])
async def test_plans_of_lanes_on_sqlite(sqlite: SqliteDatabase, name: str) -> None:
    """On SQLite a claim and a look read only the rows of the lane that are due, in order, and the next one."""
    sql = lanes._SQL[name]
    parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    rows = await sqlite.reader.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)
    steps = [row["detail"] for row in rows]
    used = [step for step in steps if "workflows_lane (tenant_id=? AND queue=? AND type=? AND available_at" in step]
    assert len(used) == (1 if name == "claim" else 2), steps
    assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN workflows")]
