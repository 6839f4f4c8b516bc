"""Commands on work items and signals: load, apply each, save, in the consumer's transaction."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from timer_service.core.consumer import CommandResult
from timer_service.core.database import Transaction
from timer_service.core.message import Command
from timer_service.signals import store
from timer_service.signals.queries import signal_view
from timer_service.signals.signals import SignalCommand
from timer_service.signals.state import Change, State, apply, read_change

_AT_ONCE = 100


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply commands in order, each seeing the results of those before it; reads and writes each table once.

    With `evaluating`, transitions are matched with the signals that wait for them; without, they are kept for later.
    """
    changes = [read_change(command, now) for command in commands]
    before = state = await store.load(tx, changes, now, evaluating=evaluating)
    results = []
    for number, (command, change) in enumerate(zip(commands, changes, strict=True), 1):
        state, outcome = apply(state, change, now)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)  # others get their turn
        results.append(CommandResult(outcome, view=_view(state, change) if command.reply_to else None))
    wake_at = await store.save(tx, before, state, now)
    return [result._replace(wake_at=wake_at) for result in results]


def _view(state: State, change: Change) -> Mapping[str, Any] | None:
    signal = state.signal(change.key) if isinstance(change, SignalCommand) else None
    return {"signal": signal_view(signal)} if signal and signal.standing.definition else None
