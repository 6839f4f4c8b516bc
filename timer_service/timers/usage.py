"""What a tenant may have of timers, and what a command adds to it."""

from collections.abc import Mapping, Sequence

from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.sql import load_sql
from timer_service.timers import store
from timer_service.timers.rules import Timer
from timer_service.timers.store import NewRow

_SQL = load_sql("timer_service.timers", "usage.sql")

PENDING = Usage("pending_timers", _SQL["count_pending"])
STORED_DATA = Usage("stored_data", _SQL["sum_large_data"])
USAGES = (PENDING, STORED_DATA)


def growth(before: Timer | None, after: Timer | None, now: int) -> Amounts:
    """Return how much more a tenant has after a command on one of its timers than before."""
    return {
        PENDING: _is_pending(after, now) - _is_pending(before, now),
        STORED_DATA: _large_data(after) - _large_data(before),
    }


def growth_by_rows(rows: Sequence[NewRow], now: int) -> Mapping[str, Amounts]:
    """Return how much each tenant has by the rows of new timers."""
    pending, data = store.count_pending(rows, now), store.sum_large_data(rows)
    return {tenant: {PENDING: pending[tenant], STORED_DATA: data[tenant]} for tenant in pending.keys() | data.keys()}


def _is_pending(timer: Timer | None, now: int) -> bool:
    """Return whether a timer fires later. One that is due does not count, because it fires now."""
    return (
        timer is not None
        and timer.available_at is not None
        and timer.schedule is not None
        and timer.schedule.due_at > now
    )


def _large_data(timer: Timer | None) -> int:
    return 0 if timer is None or timer.schedule is None else timer.schedule.large_data or 0
