"""What a tenant may have of schedules, and what a command adds to it."""

from timer_service.core.quotas import Amounts, Usage
from timer_service.core.sql import load_sql
from timer_service.schedules.schedule import Schedule

_SQL = load_sql("timer_service.schedules", "usage.sql")

SCHEDULES = Usage("schedules", _SQL["count_live"])
USAGES = (SCHEDULES,)
_NOTHING: Amounts = {}
_ONE: Amounts = {SCHEDULES: 1}


def growth(before: Schedule | None, after: Schedule) -> Amounts:
    """Return what a tenant has more after a command on one of its schedules."""
    return _ONE if after.is_live and not (before is not None and before.is_live) else _NOTHING
