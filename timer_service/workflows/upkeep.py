"""The upkeep of workflows: the clock repair, and the deletion of old workflows and workers.

A workflow is deleted whole, or a part at a time, and is marked meanwhile.
"""

from collections.abc import Iterable
from datetime import timedelta

from timer_service.core.ports.database import Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.service.clock_repair import SLACK_MS, TimedRows
from timer_service.core.values.delays import LONGEST

_SQL = load_sql("timer_service.workflows", "upkeep.sql")
_STATEMENTS = ("delete_effects", "delete_messages", "delete_data", "delete_workflow")

_LONGEST_RETRY_MS = LONGEST // timedelta(milliseconds=1)
_IS_AHEAD = f"counted_from - {SLACK_MS} > :now"
_AVAILABLE_AT = "available_at - counted_from + :now"

TIMED = (
    TimedRows(
        table="workflow_effects",
        instant="counted_from",
        is_wrong=_IS_AHEAD,
        repair="due_at = due_at - counted_from + :now, counted_from = :now",
    ),
    TimedRows(
        table="workflows",
        instant="counted_from",
        is_wrong=_IS_AHEAD,
        # A worker keeps its lease. A worker that has died holds it for one length from now on.
        repair=f"due_at = CASE WHEN due_at > {_AVAILABLE_AT} THEN {_AVAILABLE_AT} ELSE due_at END, "
        f"available_at = {_AVAILABLE_AT}, counted_from = :now",
    ),
    TimedRows(
        table="workflows",
        instant="key_due_at",
        is_wrong=f"key_due_at - {_LONGEST_RETRY_MS + SLACK_MS} > :now",
        repair="key_due_at = :now",
    ),
    TimedRows(
        table="workflow_workers",
        instant="seen_at",
        is_wrong=f"seen_at - {SLACK_MS} > :now",
        repair="first_seen_at = CASE WHEN first_seen_at > :now THEN :now ELSE first_seen_at END, seen_at = :now",
    ),
)
"""The rows that the clock repair corrects, because their instants count from one that a clock ahead has written.

Each row counts from now on instead, so a sleep is as long as it was meant to be, or longer."""


async def delete_settled(tx: Transaction, before: int, limit: int) -> int:
    """Delete workflows that ended before the instant `before`, and workers that were last seen before it.

    Return the number of deleted rows; at least `limit` if workflows are left, so that the caller calls again. The
    oldest workflows are deleted first, whole, about `limit` rows a call. A workflow with more rows is deleted in parts,
    its own row last. The mark keeps RetryWorkflow from continuing a workflow of which a part is deleted.
    """
    workers = await tx.execute(_SQL["delete_workers"], {"before": before, "limit": limit})
    settled = await tx.fetch(_SQL["settled"], {"before": before, "limit": limit})
    chosen = _fitting(settled, limit)
    each = [
        {"tenant_id": row["tenant_id"], "workflow_id": row["workflow_id"], "limit": limit}
        for row in sorted(chosen, key=lambda row: (row["tenant_id"], row["workflow_id"]))
    ]
    deleted = workers + sum([await tx.executemany(_SQL[name], each) for name in _STATEMENTS])
    await tx.executemany(_SQL["mark"], each)
    return max(deleted, limit) if len(chosen) < len(settled) else deleted


def _fitting(settled: Iterable[Row], limit: int) -> list[Row]:
    """Return the first workflows, whose rows are about `limit` together. One that alone has more is returned alone."""
    chosen: list[Row] = []
    rows = 0
    for row in settled:
        rows += 2 + 2 * int(row["effects"]) + int(row["messages"])  # each taken message is the result of an effect
        if chosen and rows > limit:
            break
        chosen.append(row)
    return chosen
