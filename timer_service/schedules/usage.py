"""What a tenant may have of schedules, and what a command adds to it."""

from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.sql import load_sql
from timer_service.schedules.rules import Applied, Outcome
from timer_service.schedules.schedule import Schedule

_SQL = load_sql("timer_service.schedules", "usage.sql")

SCHEDULES = Usage("schedules", _SQL["count_live"])
OPEN_BACKFILLS = Usage("open_backfills", _SQL["count_backfills"])
USAGES = (SCHEDULES, OPEN_BACKFILLS)


def growth(before: Schedule | None, applied: Applied) -> Amounts:
    """Return how much more a tenant has after a command on one of its schedules than before."""
    return {
        SCHEDULES: applied.schedule.is_live - (before is not None and before.is_live),
        OPEN_BACKFILLS: int(applied.outcome is Outcome.BACKFILLING),
    }
