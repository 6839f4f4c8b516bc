"""The handler of commands on work items and signals: it loads, applies and saves in the consumer's transaction."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.core.quotas import Quotas
from timer_service.core.route import CommandResult
from timer_service.signals import store
from timer_service.signals.batch import Batch, Change, apply, read_change
from timer_service.signals.messages import Outcome
from timer_service.signals.queries import signal_view
from timer_service.signals.signal import SignalCommand
from timer_service.signals.usage import growth

_COMMANDS_PER_TURN = 100
_MOST_SIGNALS = 2000
"""How many signals the transitions of one transaction can meet. Each can get a firing."""


async def handle(
    tx: Transaction,
    commands: Sequence[Command],
    now: int,
    *,
    quotas: Quotas,
    evaluating: bool,
    most_signals: int = _MOST_SIGNALS,
) -> Sequence[CommandResult | None]:
    """Apply commands in order. Each command sees the effects of the earlier ones; each table is read and written once.

    A command that would exceed a limit of its tenant has no effect. If transitions meet more than `most_signals`, the
    last commands are deferred. If `evaluating` is false, transitions are not matched with signals. They are stored for
    the evaluation worker.
    """
    changes = [read_change(command, now) for command in commands]
    count = await store.count_changes(tx, changes, most_signals) if evaluating else len(changes)
    commands, changes, deferred = commands[:count], changes[:count], len(commands) - count
    before = batch = await store.load(tx, changes, now, evaluating=evaluating)
    admission = quotas.admission(tx, now)
    results = []
    for number, (command, change) in enumerate(zip(commands, changes, strict=True), 1):
        applied, outcome = apply(batch, change, now)
        if admission:
            added = growth(batch, applied, change)
            if excess := await admission.exceeds(change.key.tenant_id, added, command.position):
                results.append(CommandResult(Outcome.OVER_QUOTA, view=excess.view))
                continue
        batch = applied
        if number % _COMMANDS_PER_TURN == 0:
            await asyncio.sleep(0)  # let other tasks run
        results.append(CommandResult(outcome, view=_view(batch, change) if command.reply_to else None))
    wake_at = await store.save(tx, before, batch, now)
    return [*(result._replace(wake_at=wake_at) for result in results), *[None] * deferred]


def _view(batch: Batch, change: Change) -> Mapping[str, Any] | None:
    signal = batch.signal(change.key) if isinstance(change, SignalCommand) else None
    return {"signal": signal_view(signal)} if signal and signal.state.definition else None
