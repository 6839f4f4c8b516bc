"""What a tenant may have of timers, and what a command adds to it."""

from timer_service.core.quotas import Amounts, Usage
from timer_service.core.sql import load_sql
from timer_service.timers.rules import Timer

_SQL = load_sql("timer_service.timers", "usage.sql")

PENDING = Usage("pending_timers", _SQL["count_pending"])
STORED_DATA = Usage("stored_data", _SQL["sum_large_data"])
USAGES = (PENDING, STORED_DATA)
_NOTHING: Amounts = {}
_ONE_TIMER: Amounts = {PENDING: 1}


def growth(before: Timer | None, after: Timer | None) -> Amounts:
    """Return what a tenant has more after a command on one of its timers."""
    is_added = _is_pending(after) and not _is_pending(before)
    if (data := _large_data(after) - _large_data(before)) > 0:
        return {PENDING: 1, STORED_DATA: data} if is_added else {STORED_DATA: data}
    return _ONE_TIMER if is_added else _NOTHING


def _is_pending(timer: Timer | None) -> bool:
    return timer is not None and timer.available_at is not None


def _large_data(timer: Timer | None) -> int:
    return 0 if timer is None or timer.schedule is None else timer.schedule.large_data or 0
