"""What the gauges tell of runs and their jobs."""

from timer_service.core.row_counts import Counted

COUNTED = (
    Counted("runs", "running", "sweep_at IS NOT NULL"),
    Counted("run_jobs", "waiting", "ready_at IS NULL AND settled_at IS NULL"),
)
