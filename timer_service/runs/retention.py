"""Deletes old runs. A run may have more than 100,000 rows, so each call deletes a part of it."""

import math

from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.runs", "retention.sql")
_KEYS = {
    "run_edges": "tenant_id, run_id, job_name",
    "run_jobs": "tenant_id, run_id, job_name",
    "run_group_needs": "tenant_id, run_id, job_name, group_name",
    "run_pending_commands": "tenant_id, run_id, position_epoch, position_sequence",
    "run_groups": "tenant_id, run_id, group_name",
}
"""The keys of the tables with the rows of runs."""
_DELETE_ROWS = [_SQL["delete_rows"].format(table=table, key=key) for table, key in _KEYS.items()]
_DELETE_RUN = _SQL["delete_run"].format(
    is_last=" AND ".join(_SQL["has_no_rows"].format(table=table) for table in _KEYS)
)


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete rows of runs that were settled before the instant `before`, and return the number of deleted rows.

    About `limit` rows of each table are deleted, the same number of each run. The row of a run is deleted last, so that
    later calls find the run until no other row is left.
    """
    runs = await tx.fetch(_SQL["settled_runs"], {"before": before, "limit": limit})
    most = math.ceil(limit / max(len(runs), 1))
    share = [{"tenant_id": run["tenant_id"], "run_id": run["run_id"], "limit": most} for run in runs]
    deleted = [await tx.executemany(statement, share) for statement in (*_DELETE_ROWS, _DELETE_RUN)]
    return sum(deleted)
