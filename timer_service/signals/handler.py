"""The handler of commands on work items and signals: it loads, applies and saves in the consumer's transaction."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.intake.route import CommandResult, View
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.signals import loader, store
from timer_service.signals.batch import Batch, Change, apply, read_change
from timer_service.signals.messages import Outcome
from timer_service.signals.queries import signal_view
from timer_service.signals.signal import Signal, SignalCommand
from timer_service.signals.usage import growth

_MOST_FIRINGS = 2000
"""After how many new firings the rest of the commands is deferred."""


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    evaluating: bool,
    monotonic: Callable[[], float] = time.monotonic,
) -> Sequence[CommandResult | None]:
    """Apply commands in order. Each command sees the effects of the earlier ones; each table is written once.

    A command that would exceed a limit of its tenant has no effect. Commands whose signals have too much data for one
    transaction are deferred. After 2,000 new firings or 50 ms the rest is.

    If `evaluating` is false, transitions are not matched with signals. They are stored for the evaluation worker.
    """
    changes = [read_change(command, now) for command in commands]
    before = batch = await loader.load(tx, changes, evaluating=evaluating)
    admission = quotas.admission(tx, now)
    transaction_time = TransactionTime(monotonic)
    results: list[CommandResult | None] = []
    for command, change in zip(commands, changes, strict=True):
        has_room = before.loaded.include(change) and batch.firing_count < _MOST_FIRINGS
        if not has_room or not await transaction_time.is_left():
            results.append(None)
            continue
        applied, outcome = apply(batch, change, now)
        if admission:
            added = growth(batch, applied, change)
            if excess := await admission.exceeds(change.key.tenant_id, added):
                results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
                continue
        batch = applied
        results.append(CommandResult(outcome, view=_view(batch, change) if command.reply_to else None))
    wake_at = await store.save(tx, before, batch, now)
    return [None if result is None else result._replace(wake_at=wake_at) for result in results]


def _view(batch: Batch, change: Change) -> View | None:
    signal = batch.signal(change.key) if isinstance(change, SignalCommand) else None
    return partial(_fields, signal) if signal and signal.state.definition else None


def _fields(signal: Signal) -> Mapping[str, Any]:
    return {"signal": signal_view(signal)}
