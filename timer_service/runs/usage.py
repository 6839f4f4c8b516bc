"""What a tenant may have of runs, and what commands add to it."""

from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.sql import load_sql
from timer_service.runs.messages import RunStatus
from timer_service.runs.rules import Run

_SQL = load_sql("timer_service.runs", "usage.sql")

OPEN_RUNS = Usage("open_runs", _SQL["count_open"])
RUN_ROWS = Usage("run_rows", _SQL["sum_rows"])
EARLY_COMMANDS = Usage("early_commands", _SQL["sum_pending"])
USAGES = (OPEN_RUNS, RUN_ROWS, EARLY_COMMANDS)


def growth(before: Run, after: Run) -> Amounts:
    """Return how much more a tenant has after commands on one of its runs than before."""
    return {
        OPEN_RUNS: _is_running(after) - _is_running(before),
        RUN_ROWS: _running_rows(after) - _running_rows(before),
        EARLY_COMMANDS: after.pending_bytes - before.pending_bytes,
    }


def _is_running(run: Run) -> bool:
    return run.started and run.status is RunStatus.RUNNING


def _running_rows(run: Run) -> int:
    return run.row_count if _is_running(run) else 0
