"""Deletes old runs. A run may have more than 100,000 rows, so each call deletes a part of it."""

import math

from timer_service.core.ports.database import Transaction
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.runs", "retention.sql")
_STATEMENTS = ("delete_edges", "delete_jobs", "delete_group_needs", "delete_pending", "delete_groups")


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete rows of runs that were settled before the instant `before`, and return the number of deleted rows.

    About `limit` rows of each table are deleted, the same number of each run. The row of a run is deleted last, so that
    later calls find the run until no other row is left.
    """
    runs = await tx.fetch(_SQL["settled_runs"], {"before": before, "limit": limit})
    most = math.ceil(limit / max(len(runs), 1))
    share = [{"tenant_id": run["tenant_id"], "run_id": run["run_id"], "limit": most} for run in runs]
    deleted = [await tx.executemany(_SQL[name], share) for name in _STATEMENTS]
    return sum(deleted) + await tx.executemany(_SQL["delete_run"], share)
