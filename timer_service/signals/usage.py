"""What a tenant may have of signals, and what a command adds to it."""

from timer_service.core.limits.quotas import Amounts, Usage
from timer_service.core.ports.sql import load_sql
from timer_service.signals.batch import Batch, Change
from timer_service.signals.signal import Key, SignalCommand

_SQL = load_sql("timer_service.signals", "usage.sql")

OPEN_SIGNALS = Usage("open_signals", _SQL["count_open"])
USAGES = (OPEN_SIGNALS,)


def growth(before: Batch, after: Batch, change: Change) -> Amounts:
    """Return how many more open signals a tenant has after a change than before."""
    if not isinstance(change, SignalCommand):
        return {}
    return {OPEN_SIGNALS: _is_open(after, change.key) - _is_open(before, change.key)}


def _is_open(batch: Batch, key: Key) -> bool:
    signal = batch.signal(key)
    return signal is not None and signal.state.is_live
