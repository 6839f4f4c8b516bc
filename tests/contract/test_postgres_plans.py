import asyncio
import re
from collections.abc import Iterator
from typing import NamedTuple

import asyncpg
import pytest

from tests.support.databases import Databases
from tests.support.stores import bring_to_head
from timer_service.adapters.postgres.database import _BEGIN
from timer_service.adapters.postgres.text import translate
from timer_service.timers import store as timers
from timer_service.timers.rules import State
from timer_service.timers.store import TIMERS

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
TEXTS = {"after", "after_call", "service_call_id", "tenant_id", "token"}
NODE = re.compile(
    r"(?:->  )?(Index Only Scan|\w+ Scan|Sort|Hash Join|Merge Join|LockRows|Materialize)(?: using (\w+))?"
)

KEY = "Index Scan timer_schedules_pkey"
AVAILABLE = "timer_schedules_available"
SCHEDULED = "timer_schedules_scheduled"
STATEMENTS = {
    "claim": (TIMERS.sql("claim"), ["LockRows", f"Index Scan {AVAILABLE}", "CTE Scan", KEY]),
    "claim of a tenant": (TIMERS.sql("claim_of_tenant"), ["LockRows", f"Index Scan {SCHEDULED}", "CTE Scan", KEY]),
    "next available": (TIMERS.sql("next_available"), [f"Index Only Scan {AVAILABLE}"]),
    "count available": (TIMERS.sql("count_available"), [f"Index Only Scan {AVAILABLE}"]),
    "complete a claim": (TIMERS.sql("complete_claim"), [f"Index Scan {AVAILABLE}"]),
    "complete": (TIMERS.sql("complete"), [KEY]),
    "retry": (TIMERS.sql("retry"), [KEY]),
    "release": (TIMERS.sql("release"), [KEY]),
    "find": (timers._SQL["find"], [KEY]),
    "find and lock": (timers._FIND_LOCKED, ["LockRows", KEY]),
    "advance": (timers._SQL["advance"], [KEY]),
    "overdue": (timers._SQL["overdue"], [f"Index Only Scan {AVAILABLE}"]),
    "oldest due": (timers._SQL["oldest_due"], [f"Index Only Scan {SCHEDULED}"]),
    "delete reached": (timers._SQL["delete_reached"], ["Index Scan timer_schedules_reached_at", KEY]),
    "delete cancelled": (timers._SQL["delete_cancelled"], ["Index Scan timer_schedules_cancelled_at", KEY]),
} | {
    f"list {state}": (timers._SQL["page"].format(such=timers._SUCH[state]), [f"Index Scan timer_schedules_{index}"])
    for state, index in zip(State, ("scheduled", "reached", "cancelled", "failed"), strict=True)
}


class Filled(NamedTuple):
    """A database with many timers."""

    url: str
    runner: asyncio.Runner


async def fill(url: str, rows: int, *, analyzed: bool) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(ROWS, rows)
    if analyzed:
        await connection.execute("ANALYZE timer_schedules")
    await connection.close()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((20_000, False), id="20,000 rows, not analyzed"),
        pytest.param((20_000, True), id="20,000 rows, analyzed"),
        pytest.param((1_000_000, False), id="1,000,000 rows, not analyzed", marks=pytest.mark.full),
        pytest.param((1_000_000, True), id="1,000,000 rows, analyzed", marks=pytest.mark.full),
    ],
)
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Filled]:
    rows, analyzed = request.param
    with asyncio.Runner() as runner:
        opening = databases.database(bring_to_head)
        url = runner.run(opening.__aenter__())
        runner.run(fill(url, rows, analyzed=analyzed))
        yield Filled(url, runner)
        runner.run(opening.__aexit__(None, None, None))


async def plan(url: str, sql: str, mode: str) -> list[str]:
    """Return what a statement is made of, as the service runs it: how it reads each table, what it locks and sorts."""
    text, names = translate(sql)
    arguments = ", ".join("'tenant-7'" if name in TEXTS else "500" for name in names)
    connection = await asyncpg.connect(url)
    await connection.execute(f"{_BEGIN}; SET LOCAL plan_cache_mode = {mode}")
    await connection.execute(f"PREPARE statement AS {text}")
    lines = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE statement{f'({arguments})' if arguments else ''}")
    await connection.close()
    nodes = (NODE.match(line[0].strip()) for line in lines)
    return [" ".join(filter(None, node.groups())) for node in nodes if node]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_plan(filled: Filled, name: str, mode: str) -> None:
    """Every hot statement goes by its index and sorts nothing, whatever the planner knows and however it prepares."""
    sql, nodes = STATEMENTS[name]
    found = filled.runner.run(plan(filled.url, sql, mode))
    assert [node for node in found if node != "Subquery Scan"] == nodes


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_pending_tenants(filled: Filled, mode: str) -> None:
    """Tenants with rows still to fire are found by one step into their index each."""
    found = filled.runner.run(plan(filled.url, TIMERS.sql("pending_tenants"), mode))
    assert set(found) == {f"Index Only Scan {SCHEDULED}", "WorkTable Scan", "CTE Scan"}
