"""Query plans of the runs slice: an index on both engines, with and without statistics, and no sort."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.databases import Databases
from tests.harness.plans import MODES, STATISTICS, FilledDatabase, filled_database
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.runs import announcements, loader, queries, retention, store, sweep

RUNS = """
INSERT INTO runs (
    tenant_id, run_id, status, digest, open_jobs, created_at, sweep_at, position_epoch, position_sequence
)
SELECT 'tenant-7', 'run-' || n, 'running', '', 20000, n, n, 1, n FROM generate_series(1, $1::bigint) AS n
"""
NAMED = """
INSERT INTO runs (tenant_id, run_id, created_at, settled_at, position_epoch, position_sequence)
SELECT 'tenant-7', 'named-' || n, n, n, 0, 0 FROM generate_series(1, $1::bigint) AS n
"""
JOBS = """
INSERT INTO run_jobs (
    tenant_id, run_id, job_name, status, payload_bytes, open_needs, open_groups
)
SELECT 'tenant-7', 'tenant-7', 'job-' || n, 'pending', 0, 1, 0 FROM generate_series(1, $1::bigint) AS n
"""
NEEDS = """
INSERT INTO run_edges (tenant_id, run_id, job_name, needs, needs_size, needed_by)
SELECT 'tenant-7', 'tenant-7', 'job-' || n, '{"skip":["job-0"]}', 18, '{"run":["job-99999"]}'
FROM generate_series(1, $1::bigint) AS n
"""
ANNOUNCEMENTS = """
INSERT INTO run_announcements (tenant_id, available_at, run_id, job_name, deferred_at, outputs_share)
SELECT 'tenant-7', n, 'tenant-7', 'job-' || n, n, 1 FROM generate_series(1, $1::bigint) AS n
"""

RUN = "runs_pkey"
JOB = "run_jobs_pkey"
EDGES = "run_edges_pkey"
ANNOUNCEMENT, SAME_COLUMNS = "run_announcements_pkey", "run_announcements_available"
PLANS = {
    "a run, locked": (loader._FIND_LOCKED, ["LockRows", f"Index Scan {RUN}"]),
    "a job": (loader._FIND_JOB, [f"Index Scan {JOB}"]),
    "jobs that changed in the same way": (store._UPDATE_JOBS, [f"Index Scan {JOB}"]),
    "a changed job": (store._UPDATE_JOB, [f"Index Scan {JOB}"]),
    "jobs that need a job": (loader._SQL["downstream"], [f"Index Scan {EDGES}"]),
    "jobs that a job needs": (loader._SQL["needs"], [f"Index Scan {EDGES}"]),
    "the outputs of a job": (loader._SQL["find_value"].format(column="outputs"), [f"Index Scan {JOB}"]),
    "the oldest announcements of a tenant": (
        announcements.ANNOUNCEMENTS.sql("due_of_tenant"),
        ["Index Scan run_announcements_pkey"],
    ),
    "an announcement, locked": (
        announcements.ANNOUNCEMENTS.sql("due_by_key"),
        ["LockRows", f"Index Scan {ANNOUNCEMENT}"],
    ),
    "an announcement": (announcements._SQL["delete"], [f"Index Scan {ANNOUNCEMENT}"]),
    "an announcement that failed": (announcements._SQL["postpone"], [f"Index Scan {ANNOUNCEMENT}"]),
    "the pending commands of a run": (loader._SQL["pending"], ["Index Scan run_pending_commands_pkey"]),
    "jobs of a run": (loader._JOBS_OF_RUN, [f"Index Scan {JOB}"]),
    "open jobs of a run": (loader._OPEN_JOBS_OF_RUN, [f"Index Scan {JOB}"]),
    "edges of a run": (loader._SQL["edges_of_run"], [f"Index Scan {EDGES}"]),
    "a page of jobs": (queries._SQL["page_of_jobs"], [f"Index Scan {JOB}"]),
    "runs of a status": (
        queries._SQL["page"].format(columns=", ".join(store.RUN_COLUMNS), and_status="AND status = 'failed'"),
        ["Index Scan"],  # backward
    ),
    "runs of all statuses": (
        queries._SQL["page"].format(columns=", ".join(store.RUN_COLUMNS), and_status=""),
        ["Index Scan"],  # backward
    ),
    "runs to sweep": (sweep._SQL["due_runs"], ["Index Scan runs_to_sweep"]),
    "stale jobs of a tenant": (sweep._STALE.sql("due_of_tenant"), ["Index Scan run_jobs_stale_of_tenant"]),
    "the next sweep": (sweep._SQL["next_sweep"], ["Index Only Scan runs_to_sweep"]),
    "the next stale job": (sweep._SQL["next_stale"], ["Index Only Scan run_jobs_stale"]),
    **{
        f"{name} of {rows.table}": (rows.sql(name), [plan])
        for rows, index in zip(sweep.TIMED, ("runs_to_sweep", "run_jobs_stale"), strict=True)
        for name, plan in (
            ("page_end", f"Index Only Scan {index}"),
            ("find_wrong", f"Index Scan {index}"),
        )
    },
    "a run that holds nothing": (store._SQL["delete_run"], [f"Index Scan {RUN}"]),
    "old runs": (retention._SQL["settled_runs"], ["LockRows", "Index Scan runs_settled"]),
}


@pytest.fixture(scope="module", params=STATISTICS)
def filled(request: pytest.FixtureRequest, databases: Databases) -> Iterator[FilledDatabase]:
    """Return a database with many runs and one run of 20,000 jobs."""
    with filled_database(databases, [RUNS, NAMED, JOBS, NEEDS, ANNOUNCEMENTS], (20_000, request.param)) as database:
        yield database


def test_plans_on_postgres(filled: FilledDatabase) -> None:
    """Every frequent statement uses its index, also on tables without statistics."""
    for mode in MODES:
        found = {name: filled.plan(sql, mode) for name, (sql, _) in PLANS.items()}
        for name, (sql, nodes) in PLANS.items():  # two indexes of the announcements have the whole key
            if "run_announcements" in sql and ANNOUNCEMENT in "".join(nodes):
                found[name] = [each.replace(SAME_COLUMNS, ANNOUNCEMENT) for each in found[name]]
        assert found == {name: nodes for name, (_, nodes) in PLANS.items()}


async def test_plans_on_sqlite(sqlite: SqliteDatabase) -> None:
    """On SQLite no frequent statement scans or sorts, for one or for many parameter sets."""
    for name, (sql, _) in PLANS.items():
        parameters = {each: ["1"] if f"ANY (:{each})" in sql else 1 for each in re.findall(r":(\w+)", sql)}
        async with sqlite.transaction() as tx:
            once = [row["detail"] for row in await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            many = [row["detail"] for row in await tx.fetch_each(f"EXPLAIN QUERY PLAN {sql}", [parameters])]
        names = [step for step in once if step.startswith(("LIST SUBQUERY", "SCAN json_each VIRTUAL TABLE"))]
        assert len(names) == 2 * sql.count("= ANY"), (name, once)
        assert all(step.startswith(("SEARCH", "CORRELATED")) for step in once if step not in names), (name, once)
        assert [step for step in many if step in names or not step.startswith("SCAN json_each")] == once, (name, many)
