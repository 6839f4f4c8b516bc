"""Deletes old workflows and workers. A workflow may have 10,000 effects, so each call deletes a part of it."""

from timer_service.core.database import Transaction
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.workflows", "retention.sql")
_STATEMENTS = ("delete_effects", "delete_messages")


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete workflows that ended before the instant `before`, and workers that were last seen before it.

    Return the number of deleted rows. At most `limit` rows of each table are deleted. The row of a workflow is deleted
    last, so that later calls find it until no other row is left.
    """
    workers = await tx.execute(_SQL["delete_workers"], {"before": before, "limit": limit})
    workflows = await tx.fetch(_SQL["settled"], {"before": before, "limit": limit})
    share = sorted((row["tenant_id"], row["workflow_id"]) for row in workflows)
    each = [
        {"tenant_id": tenant_id, "workflow_id": workflow_id, "limit": limit // len(share)}
        for tenant_id, workflow_id in share
    ]
    deleted = [await tx.executemany(_SQL[name], each) for name in (*_STATEMENTS, "delete_data", "delete_workflow")]
    return workers + sum(deleted)
