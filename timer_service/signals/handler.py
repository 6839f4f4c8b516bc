"""The handler of commands on work items and signals: it loads, applies and saves in the transaction of the intake."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timer_service.core.intake.batch import Change, apply_in_order
from timer_service.core.intake.route import CommandResult
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import Command
from timer_service.signals import store
from timer_service.signals.batch import Batch, read_change
from timer_service.signals.queries import signal_view
from timer_service.signals.signal import NewItem, Signal, SignalCommand, Transition, apply_command, is_live
from timer_service.signals.store import OPEN_SIGNALS

_MOST_FIRINGS = 2000
"""A transaction with so many new firings applies no more commands."""


async def handle(
    tx: Transaction, commands: Sequence[Command], now: int, *, quotas: Quotas, evaluating: bool
) -> Sequence[CommandResult]:
    """Apply the first commands in order. See `Handle`. Each table is written once.

    If `evaluating` is false, transitions are not matched with signals. They are stored for the evaluation worker.
    """
    changes = [read_change(command, now) for command in commands]
    loaded, count = await store.load(tx, changes, evaluating=evaluating)
    batch = Batch(loaded, evaluating=evaluating)

    def decide(number: int) -> Change | None:
        """Return the change of a command; None if the transaction has enough new firings."""
        change = changes[number]
        if len(batch.firings) >= _MOST_FIRINGS:
            return None
        match change:
            case NewItem():
                return Change(lambda: CommandResult(batch.create_item(change)))
            case Transition():
                return Change(lambda: CommandResult(batch.move_item(change)))
            case _:
                return _change_of_signal(batch, change, now, wants_view=commands[number].reply_to is not None)

    results = await apply_in_order(commands[:count], quotas.admission(tx, now), decide)
    wake_at = await store.save(tx, batch, now)
    return [result._replace(wake_at=wake_at) for result in results]


def _change_of_signal(batch: Batch, change: SignalCommand, now: int, *, wants_view: bool) -> Change:
    """Return the change of a command on a signal. The outcome of a signal that does not exist has no view."""
    before = batch.signals.get(change.key)
    signal, outcome = apply_command(before, change, now)

    def keep() -> CommandResult:
        """Put the signal into the batch. Return the result."""
        if signal is not None:
            batch.put_signal(signal, change.cause)
        return CommandResult(outcome, view=partial(_fields, signal) if signal is not None and wants_view else None)

    return Change(keep, {OPEN_SIGNALS: is_live(signal) - is_live(before)})


def _fields(signal: Signal) -> Mapping[str, Any]:
    return {"signal": signal_view(signal)}
