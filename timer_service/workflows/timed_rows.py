"""The rows that the clock repair corrects: their instants count from an instant that a clock ahead has written."""

from timer_service.core.service.clock_repair import SLACK_MS, TimedRows

_IS_AHEAD = f"counted_from - {SLACK_MS} > :now"
_AVAILABLE_AT = "available_at - counted_from + :now"

TIMED = (
    TimedRows(
        table="workflow_effects",
        key=("tenant_id", "workflow_id", "name", "n"),
        instant="counted_from",
        is_wrong=_IS_AHEAD,
        repair="due_at = due_at - counted_from + :now, counted_from = :now",
    ),
    TimedRows(
        table="workflows",
        key=("tenant_id", "workflow_id"),
        instant="counted_from",
        is_wrong=_IS_AHEAD,
        # A worker keeps its lease. A worker that has died holds it for one length from now on.
        repair=f"due_at = CASE WHEN due_at > {_AVAILABLE_AT} THEN {_AVAILABLE_AT} ELSE due_at END, "
        f"available_at = {_AVAILABLE_AT}, counted_from = :now",
    ),
    TimedRows(
        table="workflow_workers",
        key=("tenant_id", "worker_id"),
        instant="seen_at",
        is_wrong=f"seen_at - {SLACK_MS} > :now",
        repair="first_seen_at = CASE WHEN first_seen_at > :now THEN :now ELSE first_seen_at END, seen_at = :now",
    ),
)
"""Each row counts from now on instead, so a sleep is as long as it was meant to be, or longer."""
