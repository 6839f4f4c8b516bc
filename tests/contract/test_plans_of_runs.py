"""How what runs ask is answered: along an index on both engines, whatever the planner knows, sorting nothing."""

import asyncio
import re
from collections.abc import Iterator

import asyncpg
import pytest

from tests.support.databases import Databases
from tests.support.stores import bring_to_head
from timer_service.adapters.postgres.database import _BEGIN
from timer_service.adapters.postgres.text import translate
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.needs import retention, store, sweep

ROWS = """
INSERT INTO execution_runs (
    tenant_id, run_id, status, digest, open_jobs, created_at, sweep_at, position_epoch, position_sequence
)
SELECT 'acme', 'run-' || n, 'running', '', 20000, n, n, 1, n FROM generate_series(1, 5000) AS n;
INSERT INTO execution_runs (tenant_id, run_id, created_at, settled_at, position_epoch, position_sequence)
SELECT 'acme', 'named-' || n, n, n, 0, 0 FROM generate_series(1, 5000) AS n;
INSERT INTO execution_jobs (
    tenant_id, run_id, job_name, status, open_needs, open_groups, position_epoch, position_sequence
)
SELECT 'acme', 'run-1', 'job-' || n, 'pending', 1, 0, 0, 0 FROM generate_series(1, 20000) AS n;
INSERT INTO execution_job_needs (tenant_id, run_id, job_name, upstream_name, if_failed)
SELECT 'acme', 'run-1', 'job-' || n, 'job-' || (n - 1), 'skip' FROM generate_series(2, 20000) AS n;
"""
NODE = re.compile(r"(?:->  )?(Index Only Scan(?: Backward)?|\w+ Scan(?: Backward)?|Sort|LockRows)(?: using (\w+))?")
NUMBERS = {"before", "before_at", "limit", "now", "at"}

RUN = "execution_runs_pkey"
JOB = "execution_jobs_pkey"
NEED = "execution_job_needs_pkey"
PLANS = {
    "a run, locked": (store._FIND_LOCKED, ["LockRows", f"Index Scan {RUN}"]),
    "a job": (store._SQL["find_job"], [f"Index Scan {JOB}"]),
    "a changed job": (store._SQL["put_job"].replace(":status", "'failed'"), [f"Index Scan {JOB}"]),
    "who needs a job": (store._SQL["downstream"], ["Index Only Scan execution_job_needs_downstream"]),
    "what a job needs": (store._SQL["needs_of_job"], [f"Index Scan {NEED}"]),
    "what upstreams put out": (store._SQL["upstream_outputs"], [f"Index Only Scan {NEED}", f"Index Scan {JOB}"]),
    "jobs of a run": (store._SQL["jobs_of_run"], [f"Index Scan {JOB}"]),
    "needs of a run": (store._SQL["needs_of_run"], [f"Index Scan {NEED}"]),
    "a page of jobs": (store._SQL["page_of_jobs"], [f"Index Scan {JOB}"]),
    "runs of a status": (
        store._SQL["page"].format(such="status = 'failed'"),
        ["Index Scan Backward execution_runs_by_status"],
    ),
    "runs to sweep": (sweep._SQL["to_sweep"], ["Index Scan execution_runs_to_sweep"]),
    "stale jobs": (sweep._SQL["stale"], ["Index Scan execution_jobs_stale"]),
    "the next sweep": (sweep._SQL["next_sweep"], ["Index Only Scan execution_runs_to_sweep"]),
    "the next stale job": (sweep._SQL["next_stale"], ["Index Only Scan execution_jobs_stale"]),
    "old runs": (retention._SQL["settled"], ["LockRows", "Index Scan execution_runs_settled"]),
}


async def fill(url: str, *, analyzed: bool) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(ROWS)
    if analyzed:
        await connection.execute("ANALYZE")
    await connection.close()


@pytest.fixture(scope="module", params=["analyzed", "not analyzed"])
def plans(request: pytest.FixtureRequest, databases: Databases) -> Iterator[dict[str, list[str]]]:
    """Return how PostgreSQL runs each statement over one run of 20,000 jobs, and however it prepares it."""
    with asyncio.Runner() as runner:
        opening = databases.database(bring_to_head)
        url = runner.run(opening.__aenter__())
        runner.run(fill(url, analyzed=request.param == "analyzed"))
        yield runner.run(explain(url))
        runner.run(opening.__aexit__(None, None, None))


async def explain(url: str) -> dict[str, list[str]]:
    connection = await asyncpg.connect(url)
    found = {}
    for name, (sql, _) in PLANS.items():
        for mode in ("custom", "generic"):
            text, names = translate(sql)
            arguments = ", ".join("500" if each in NUMBERS else _text(each) for each in names)
            await connection.execute(f"{_BEGIN}; SET LOCAL plan_cache_mode = force_{mode}_plan")
            await connection.execute(f"PREPARE statement AS {text}")
            call = f"EXECUTE statement{f'({arguments})' if arguments else ''}"
            lines = await connection.fetch(f"EXPLAIN (COSTS OFF) {call}")
            await connection.execute("DEALLOCATE statement; ROLLBACK")
            nodes = (NODE.match(line[0].strip()) for line in lines)
            found[f"{name}, {mode}"] = [" ".join(filter(None, node.groups())) for node in nodes if node]
    await connection.close()
    return found


def _text(name: str) -> str:
    known = {"tenant_id": "'acme'", "run_id": "'run-1'", "job_name": "'job-7'"}
    return known.get(name, "NULL" if name.endswith("_at") or name in {"reason", "status"} else "'0'")


def test_plans_on_postgres(plans: dict[str, list[str]]) -> None:
    """Every statement that runs often is run along the index made for it, also over tables no statistics tell of."""
    assert plans == {f"{name}, {mode}": nodes for name, (_, nodes) in PLANS.items() for mode in ("custom", "generic")}


async def test_plans_on_sqlite(sqlite: SqliteDatabase) -> None:
    """No such statement scans or sorts on SQLite either."""
    for name, (sql, _) in PLANS.items():
        parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        async with sqlite.transaction() as tx:
            steps = [row["detail"] for row in await tx.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        assert all(step.startswith(("SEARCH", "CORRELATED")) for step in steps), (name, steps)
