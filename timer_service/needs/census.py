"""What the gauges tell of runs and their jobs."""

from timer_service.core.census import Counted

COUNTED = (
    Counted("execution_runs", "running", "sweep_at IS NOT NULL"),
    Counted("execution_jobs", "waiting", "ready_at IS NULL AND settled_at IS NULL"),
)
