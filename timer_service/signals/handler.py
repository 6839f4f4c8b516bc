"""The handler of commands on work items and signals: it loads, applies and saves in the transaction of the intake."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.turns import TransactionTime
from timer_service.core.values.message import Command
from timer_service.signals import store
from timer_service.signals.batch import Batch, read_change
from timer_service.signals.messages import Outcome
from timer_service.signals.queries import signal_view
from timer_service.signals.signal import NewItem, Signal, Transition, apply_command, is_live
from timer_service.signals.store import OPEN_SIGNALS

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
    batch = Batch(await store.load(tx, changes, evaluating=evaluating), evaluating=evaluating)
    admission = quotas.admission(tx, now)
    transaction_time = TransactionTime(monotonic)
    results: list[CommandResult | None] = []
    for command, change in zip(commands, changes, strict=True):
        has_room = batch.loaded.include(change) and len(batch.firings) < _MOST_FIRINGS
        if not has_room or not await transaction_time.is_left():
            results.append(None)
            continue
        match change:
            case NewItem():
                results.append(CommandResult(batch.create_item(change)))
                continue
            case Transition():
                results.append(CommandResult(batch.move_item(change)))
                continue
        before = batch.signals.get(change.key)
        signal, outcome = apply_command(before, change, now)
        added = {OPEN_SIGNALS: is_live(signal) - is_live(before)}
        if admission and (excess := await admission.exceeds(change.key.tenant_id, added)):
            results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
            continue
        if signal is not None:
            batch.put_signal(signal, change.cause)
        view = partial(_fields, signal) if signal is not None and command.reply_to else None
        results.append(CommandResult(outcome, view=view))
    wake_at = await store.save(tx, batch, now)
    return [None if result is None else result._replace(wake_at=wake_at) for result in results]


def _fields(signal: Signal) -> Mapping[str, Any]:
    return {"signal": signal_view(signal)}
