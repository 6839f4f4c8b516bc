"""Deletes runs that ended long ago, a share of each at a time: one run may have 100,000 rows."""

from timer_service.core.database import Transaction
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.runs", "retention.sql")
_PARTS = ("delete_needs", "delete_jobs", "delete_group_needs", "delete_pending", "delete_groups")


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete up to `limit` rows of each kind of runs that ended before an instant; return how many.

    The run itself goes last, so it is found again until nothing of it is left.
    """
    runs = await tx.fetch(_SQL["settled"], {"before": before, "limit": limit})
    share = [{"tenant_id": run["tenant_id"], "run_id": run["run_id"], "limit": limit // len(runs)} for run in runs]
    deleted = [await tx.executemany(_SQL[part], share) for part in _PARTS]
    return sum(deleted) + await tx.executemany(_SQL["delete_run"], share)
