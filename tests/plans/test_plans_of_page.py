"""Query plans of the page: a search of an index for each tenant on both engines, with and without statistics."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, FilledDatabase, filled_database
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.ui.tenants import Rows
from timer_service.ui.views import TENANT_ROWS

FILL = [
    """
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
""",
]

ALL = {f"{rows.table} where {rows.where}": rows for rows in TENANT_ROWS}


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("name", ["page", "count"])
@pytest.mark.parametrize("rows", ALL.values(), ids=ALL.keys())
async def test_sqlite(sqlite: SqliteDatabase, rows: Rows, name: str, *, analyzed: bool) -> None:
    """Each table is searched by the tenant, in an index that has all that is read."""
    sql = rows.sql(name)
    async with sqlite.transaction() as tx:
        if analyzed:
            await tx.execute("ANALYZE")
        plan = await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", dict.fromkeys(re.findall(r":(\w+)", sql), 1))
    reads = [row["detail"] for row in plan if rows.table in row["detail"]]
    assert len(reads) == sql.count(rows.table)
    for read in reads:
        assert re.match(rf"SEARCH {rows.table} USING (COVERING )?INDEX \w+ \(tenant_id[=>]\?", read), plan


@pytest.fixture(scope="module", params=[False, True], ids=["not analyzed", "analyzed"])
def filled(databases: Databases, request: pytest.FixtureRequest) -> Iterator[FilledDatabase]:
    """Make tables with 20,000 rows each."""
    with filled_database(databases, FILL, (20_000, request.param)) as database:
        yield database


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["page", "count"])
@pytest.mark.parametrize("rows", ALL.values(), ids=ALL.keys())
def test_postgres(filled: FilledDatabase, rows: Rows, name: str, mode: str) -> None:
    """Each table is read by an index, and nothing is sorted."""
    plan = filled.plan(rows.sql(name), mode)
    assert not [node for node in plan if node.startswith(("Seq Scan", "Sort", "Bitmap Heap Scan"))], plan
    assert [node for node in plan if node.startswith("Index")], plan
