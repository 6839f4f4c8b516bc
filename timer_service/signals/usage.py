"""What a tenant may have of signals, and what a command adds to it."""

from timer_service.core.quotas import Amounts, Usage
from timer_service.core.sql import load_sql
from timer_service.signals.batch import Batch, Change
from timer_service.signals.signal import Key, SignalCommand

_SQL = load_sql("timer_service.signals", "usage.sql")

OPEN_SIGNALS = Usage("open_signals", _SQL["count_open"])
USAGES = (OPEN_SIGNALS,)


def growth(before: Batch, after: Batch, change: Change) -> Amounts:
    """Return what a tenant has more after a change: one signal, if the signal was not there or had ended."""
    if not isinstance(change, SignalCommand) or _is_live(before, change.key) or not _is_live(after, change.key):
        return {}
    return {OPEN_SIGNALS: 1}


def _is_live(batch: Batch, key: Key) -> bool:
    signal = batch.signal(key)
    return signal is not None and signal.state.is_live
